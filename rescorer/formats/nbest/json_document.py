"""Owns files that are one JSON object: read and written member by member."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.io.json_records import SURROGATE_ESCAPE
from rescorer.formats.io.json_stream import JsonStream, build_object
from rescorer.formats.io.text_io import Source, open_output, read_text_chunks, source_name
from rescorer.types import NBestList

WriteMember = Callable[[str, Any], None]


def parse_document(text: str, file: str, line: int = 1) -> Any:
    """The value of a text that begins at ``line`` of a file.

    Raises:
        FormatError: it is no JSON, has a key twice in one object, or holds half a surrogate pair; names the
            line where JSON has one.
    """
    try:
        value = json.loads(text, object_pairs_hook=build_object)
        if SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as fault:
        message = f"not JSON: {fault.msg} at column {fault.colno}"
        raise FormatError(message, file=file, line=line + fault.lineno - 1) from None
    except UnicodeEncodeError:
        raise FormatError("unpaired surrogate; expected Unicode text", file=file) from None
    except (ValueError, RecursionError) as fault:  # thousands of digits or of brackets, a key twice
        raise FormatError(f"cannot parse JSON: {fault}", file=file) from None
    return value


def open_document(source: Source) -> JsonStream:
    """The beginning of a file that is one object, whose ``members`` come next.

    Raises:
        FormatError: it cannot be opened, or is something else.
    """
    file = source_name(source)
    document = JsonStream(read_text_chunks(source), file)
    expect_object(document, file)
    return document


def expect_object(document: JsonStream, file: str, field: str = "") -> None:
    """Raises FormatError where something else than an object comes next."""
    if document.peek() != "{":
        if not document.peek() or document.describe_next() == "a number":
            document.read_value()  # where it is none, this says why
        raise FormatError(f"expected a JSON object, not {document.describe_next()}", file=file, field=field)


def member_lists(
    document: JsonStream, build_list: Callable[[str, Any, str], NBestList | InvalidList], file: str
) -> Iterator[NBestList | InputError]:
    """What ``build_list`` makes of each member of the object that comes next, by key, value and file."""
    seen: set[str] = set()
    for list_id in document.read_members(allow_duplicates=True):
        record = document.read_value()
        try:
            if list_id in seen:
                raise InvalidList("is here a second time", list_id=list_id, file=file)
            yield build_list(list_id, record, file)
        except InvalidList as fault:
            yield fault
        seen.add(list_id)


@contextmanager
def object_writer(target: str | Path, before: str = "{", after: str = "}") -> Iterator[WriteMember]:
    """Writes one object, a member a line, between ``before`` and ``after``.

    What it yields takes key and value, and raises InvalidList for a key that was written before.
    """
    written: set[str] = set()
    with open_output(target) as stream:
        stream.write(before)

        def write(key: str, value: Any) -> None:
            if key in written:
                raise InvalidList("is there a second time; expected each id once", list_id=key, field="id")
            member = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
            stream.write(f"{',' if written else ''}\n{member}")
            written.add(key)

        yield write
        stream.write(f"\n{after}\n")
