r"""Owns files that say something about utterances by id: what was said, or who spoke.

References come as ``words (id)`` lines (NIST trn), as ``id<TAB>text`` (further columns are not read) or as
JSON; the first line that is neither blank nor a comment (``;;``) tells which. JSON is an object a line, or
one array of objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from rescorer.errors import FormatError
from rescorer.formats.io.json_records import describe_type, parse_object
from rescorer.formats.io.text_io import Source, read_lines_strict, source_name
from rescorer.formats.nist.trn_ctm import COMMENT, parse_trn

Entry = tuple[int, str, str]
"""Line, id, value."""


def read_references(source: Source, id_field: str = "id", text_field: str = "reference") -> dict[str, str]:
    """What was said, by id; an empty text is legal.

    Raises:
        FormatError: a line cannot be read, or one id has two different texts; names file and line.
    """
    file = source_name(source)
    lines = _text_lines(source)
    first = lines[0][1] if lines else ""
    if _is_json(first):
        return _by_id(_json_entries(lines, file, id_field, text_field), file)
    parse = _tsv if "\t" in first else parse_trn
    return _by_id(_entries(lines, parse, file), file)


def read_groups(source: Source, id_field: str = "id", group_field: str = "speaker") -> dict[str, str]:
    """Group (speaker, conversation) by id, from a JSON file.

    Raises:
        FormatError: a record cannot be read, or one id has two different groups; names file and line.
    """
    file = source_name(source)
    return _by_id(_json_entries(_text_lines(source), file, id_field, group_field), file)


def _text_lines(source: Source) -> list[tuple[int, str]]:
    """The lines that are neither blank nor comments, with their numbers."""
    return [
        (line, text)
        for line, text in read_lines_strict(source)
        if text.strip() and not text.startswith(COMMENT)
    ]


def _is_json(first: str) -> bool:
    """A trn line may begin with a brace too: ``{ uh / @ } yes (u1)``."""
    return bool(re.match(r'\s*(\[|\{\s*("|$))', first)) and parse_trn(first) is None


def _entries(
    lines: list[tuple[int, str]], parse: Callable[[str], tuple[str, str] | None], file: str
) -> Iterator[Entry]:
    for line, text in lines:
        entry = parse(text)
        if entry is None:
            expected = "id<TAB>text" if parse is _tsv else "words (id), id<TAB>text or JSON"
            raise FormatError(f"expected {expected}", file=file, line=line)
        yield line, *entry


def _tsv(text: str) -> tuple[str, str] | None:
    key, tab, rest = text.partition("\t")
    return (key.strip(), rest.split("\t")[0].strip()) if tab and key.strip() else None


def _json_entries(
    lines: list[tuple[int, str]], file: str, id_field: str, value_field: str
) -> Iterator[Entry]:
    for line, record in _records(lines, file):
        for field in (id_field, value_field):
            if not isinstance(record.get(field), str):
                kind = describe_type(record.get(field))
                raise FormatError(f"expected a string, not {kind}", file=file, line=line, field=field)
        yield line, record[id_field], record[value_field]


def _records(lines: list[tuple[int, str]], file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects with their lines; in an array their places count, from 1."""
    if not lines or not lines[0][1].lstrip().startswith("["):
        for line, text in lines:
            yield line, parse_object(text, file, line)
        return
    try:
        records = json.loads("\n".join(text for _, text in lines))
    except json.JSONDecodeError as fault:
        line = lines[fault.lineno - 1][0]
        raise FormatError(f"not JSON: {fault.msg} at column {fault.colno}", file=file, line=line) from None
    except (ValueError, RecursionError) as fault:
        raise FormatError(f"not readable JSON: {fault}", file=file) from None
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise FormatError(
                f"expected an object as element {number}, not {describe_type(record)}", file=file
            )
        yield number, record


def _by_id(entries: Iterator[Entry], file: str) -> dict[str, str]:
    known: dict[str, str] = {}
    for line, key, value in entries:
        if known.setdefault(key, value) != value:
            raise FormatError(f"{key!r} is here a second time, and not the same", file=file, line=line)
    return known
