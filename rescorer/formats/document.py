"""Owns files that are one JSON document: read whole, as their own tools do, and written a member a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.records import SURROGATE, json_kind
from rescorer.formats.source import Source, open_output, read_lines, source_name

WriteMember = Callable[[str, Any], None]


def read_document(source: Source) -> Any:
    """The value of the whole file.

    Raises:
        FormatError: it cannot be read, or as ``parse_document``.
    """
    file = source_name(source)
    lines = []
    for _, text in read_lines(source):
        if isinstance(text, FormatError):
            raise text
        lines.append(text)
    return parse_document("\n".join(lines), file)


def parse_document(text: str, file: str, line: int = 1) -> Any:
    """The value of a text that begins at ``line`` of a file.

    Raises:
        FormatError: it is no JSON, has a key twice in one object, or holds half a surrogate pair; names the
            line where JSON has one.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as fault:
        message = f"not JSON: {fault.msg} at column {fault.colno}"
        raise FormatError(message, file=file, line=line + fault.lineno - 1) from None
    except UnicodeEncodeError:
        raise FormatError("half a surrogate pair; expected Unicode text", file=file) from None
    except (ValueError, RecursionError) as fault:  # thousands of digits or of brackets, a key twice
        raise FormatError(f"not readable JSON: {fault}", file=file) from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two values of one key would lose one of them in silence."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return value


def members(value: Any, file: str, field: str = "") -> dict[str, Any]:
    """``value`` where it is an object; raises FormatError where it is something else."""
    if not isinstance(value, dict):
        raise FormatError(f"expected a JSON object, not {json_kind(value)}", file=file, field=field)
    return value


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
