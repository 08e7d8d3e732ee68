"""Read and write JSON documents: one per line, or one object per file, member by member."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import DUPLICATE_ID
from rescorer.formats.io.json_records import SURROGATE_ESCAPE
from rescorer.formats.io.json_stream import JsonStream, build_object
from rescorer.formats.io.text_io import Source, open_output, read_lines, read_text_chunks, source_name
from rescorer.types import NBestList

WriteMember = Callable[[str, Any], None]


def parse_document(text: str, file: str, line: int = 1) -> Any:
    """Return the JSON value of a text.

    Args:
        line: 1-based line of the file on which the text starts.

    Raises:
        FormatError: If the text is not JSON, or contains a duplicate key or an unpaired surrogate.
    """
    try:
        value = json.loads(text, object_pairs_hook=build_object)
        if SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at column {error.colno}"
        raise FormatError(message, file=file, line=line + error.lineno - 1) from None
    except UnicodeEncodeError:
        raise FormatError("unpaired surrogate; expected Unicode text", file=file) from None
    except (ValueError, RecursionError) as error:  # thousands of digits or brackets, or a duplicate key
        raise FormatError(f"cannot parse JSON: {error}", file=file) from None
    return value


def parse_document_lines(
    lines: Iterator[tuple[int, str | FormatError]], file: str
) -> Iterator[tuple[int, Any]]:
    """Yield number and document of each line that is not blank, or the error if it is invalid."""
    for line, text in lines:
        if isinstance(text, FormatError):
            yield line, text
        elif text.strip():
            try:
                yield line, parse_document(text, file, line)
            except FormatError as error:
                yield line, error


def open_documents(source: Source, file: str) -> JsonStream | Iterator[tuple[int, Any]]:
    """Open a file that contains one document, or one document per line.

    Returns:
        The document as a stream if it takes several lines; otherwise the iterator of
        ``parse_document_lines``.

    Raises:
        FormatError: If the file cannot be opened, or its first line is not valid text.
    """
    lines = read_lines(source)
    head = []
    for line, text in lines:
        if isinstance(text, FormatError):
            raise text
        if _is_json(text):
            return parse_document_lines(chain([(line, text)], lines), file)
        head.append(text)
        if text.strip():
            break
    return JsonStream(chain(["\n".join(head)], _join_lines(lines)), file)


def _join_lines(lines: Iterator[tuple[int, str | FormatError]]) -> Iterator[str]:
    for _, text in lines:
        if isinstance(text, FormatError):
            raise text
        yield f"\n{text}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def open_document(source: Source) -> JsonStream:
    """Open a file that consists of one object, positioned before its members.

    Raises:
        FormatError: If the file cannot be opened, or does not start with an object.
    """
    file = source_name(source)
    document = JsonStream(read_text_chunks(source), file)
    expect_object(document, file)
    return document


def expect_object(document: JsonStream, file: str, field: str = "") -> None:
    """Raise FormatError if the next value is not an object."""
    if document.peek() != "{":
        if not document.peek() or document.describe_next() == "a number":
            document.read_value()  # raises a more precise error if this is not a value at all
        raise FormatError(f"expected a JSON object, got {document.describe_next()}", file=file, field=field)


def read_member_lists(
    document: JsonStream, parse_list: Callable[[str, Any, str], NBestList | InvalidList], file: str
) -> Iterator[NBestList | InputError]:
    """Yield the list in each member of the next object, or an error for invalid lists and duplicate ids.

    Args:
        parse_list: Builds a list from a member's key and value and the file name; may raise InvalidList.
    """
    seen: set[str] = set()
    for list_id in document.read_members(allow_duplicates=True):
        record = document.read_value()
        try:
            if list_id in seen:
                raise InvalidList(DUPLICATE_ID, list_id=list_id, file=file)
            yield parse_list(list_id, record, file)
        except InvalidList as error:
            yield error
        seen.add(list_id)


@contextmanager
def object_writer(target: str | Path, before: str = "{", after: str = "}") -> Iterator[WriteMember]:
    """Write one object, one member per line, between ``before`` and ``after``.

    Yields a function that writes a key and its value, and raises InvalidList for a duplicate key.
    """
    written: set[str] = set()
    with open_output(target) as stream:
        stream.write(before)

        def write(key: str, value: Any) -> None:
            if key in written:
                raise InvalidList("already written; expected each id once", list_id=key, field="id")
            member = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
            stream.write(f"{',' if written else ''}\n{member}")
            written.add(key)

        yield write
        stream.write(f"\n{after}\n")
