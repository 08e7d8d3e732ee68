r"""Read references and speaker groups by utterance id.

References are lines ``words (id)`` (NIST trn), ``id words`` (Kaldi's ``text``), ``id<TAB>text`` (further
columns are ignored) or JSON, one object per line or one array of objects, which may be segments of meeteval,
or one object of texts by id; lines that are blank or comments (``;;``) do not count. The trn format is that
of sclite: https://github.com/usnistgov/SCTK/blob/master/doc/infmts.htm. Groups are JSON or Kaldi's
``utt2spk``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from rescorer.errors import FormatError
from rescorer.formats.io.json_records import describe_type, parse_object
from rescorer.formats.io.text_io import Source, read_lines_strict, source_name
from rescorer.formats.json_documents import seglst
from rescorer.formats.nist.trn_ctm import COMMENT, parse_trn

REFERENCE, TEXT = "reference", "text"
"""Names of the text in JSON; the second is read if the first is missing."""
Entry = tuple[int, str, str]
"""Line number, id and value."""
LineParser = Callable[[str], tuple[str, str] | None]
"""Returns the id and the value of a line, or None if it has another format."""


def read_references(source: Source, id_field: str = "id", text_field: str = REFERENCE) -> dict[str, str]:
    """Read the reference text of each utterance, by id; a text may be empty.

    Args:
        id_field: Name of the field with the id, in JSON.
        text_field: Name of the field with the text, in JSON.

    Raises:
        FormatError: If a line cannot be read, or an id has two different texts; the error names file and
            line.
    """
    file = source_name(source)
    lines = _read_content_lines(source)
    first = lines[0][1] if lines else ""
    if _is_json(first):
        return _index_by_id(_parse_json(lines, file, id_field, text_field), file)
    return _index_by_id(_parse_lines(lines, *_choose_line_format(lines), file), file)


def read_groups(source: Source, id_field: str = "id", group_field: str = "speaker") -> dict[str, str]:
    """Read the group (speaker or conversation) of each utterance, by id, from JSON or lines ``id group``.

    Raises:
        FormatError: If a record cannot be read, or an id has two different groups; the error names file and
            line.
    """
    file = source_name(source)
    lines = _read_content_lines(source)
    if lines and not _is_json(lines[0][1]):
        return _index_by_id(_parse_lines(lines, _parse_pair, "id speaker (utt2spk) or JSON", file), file)
    return _index_by_id(_parse_json(lines, file, id_field, group_field), file)


def _read_content_lines(source: Source) -> list[tuple[int, str]]:
    """Read the lines that are neither blank nor comments, with their numbers."""
    return [
        (line, text)
        for line, text in read_lines_strict(source)
        if text.strip() and not text.startswith(COMMENT)
    ]


def _is_json(first: str) -> bool:
    """Return whether the first line is JSON and not a trn line with a brace: ``{ uh / @ } yes (u1)``."""
    return bool(re.match(r'\s*(\[|\{\s*("|$))', first)) and parse_trn(first) is None


def _choose_line_format(lines: list[tuple[int, str]]) -> tuple[LineParser, str]:
    """Choose how to parse lines, and how to describe what they should be.

    A word of Kaldi's ``text`` may be in parentheses, so one such line does not make a file trn.
    """
    if lines and "\t" in lines[0][1]:
        return _parse_tsv, "id<TAB>text"
    n_trn = sum(parse_trn(text) is not None for _, text in lines)
    if lines and parse_trn(lines[0][1]) and 2 * n_trn >= len(lines):
        return parse_trn, "words (id), as in the first line"
    return _parse_kaldi, "id words, words (id), id<TAB>text or JSON"


def _parse_lines(
    lines: list[tuple[int, str]], parse_line: LineParser, expected: str, file: str
) -> Iterator[Entry]:
    for line, text in lines:
        entry = parse_line(text)
        if entry is None:
            raise FormatError(f"expected {expected}", file=file, line=line)
        yield line, *entry


def _parse_tsv(text: str) -> tuple[str, str] | None:
    key, tab, rest = text.partition("\t")
    return (key.strip(), rest.split("\t")[0].strip()) if tab and key.strip() else None


def _parse_kaldi(text: str) -> tuple[str, str]:
    key, _, words = text.strip().partition(" ")
    return key, words.strip()


def _parse_pair(text: str) -> tuple[str, str] | None:
    fields = text.split()
    return (fields[0], fields[1]) if len(fields) == 2 else None


def _parse_json(lines: list[tuple[int, str]], file: str, id_field: str, value_field: str) -> Iterator[Entry]:
    records = list(_parse_records(lines, file))
    if records and seglst.is_segment(records[0][1]) and id_field not in records[0][1]:
        yield from seglst.read_entries(records, file, value_field)
        return
    if len(records) == 1 and id_field not in records[0][1]:
        line, mapping = records[0]
        if mapping and value_field not in mapping and all(isinstance(text, str) for text in mapping.values()):
            yield from ((line, key, text) for key, text in mapping.items())
            return
    for line, record in records:
        if type(record.get(id_field)) is int:
            record[id_field] = str(record[id_field])
        if value_field == REFERENCE and value_field not in record and TEXT in record:
            record[value_field] = record[TEXT]
        for field in (id_field, value_field):
            if not isinstance(record.get(field), str):
                kind = describe_type(record.get(field))
                raise FormatError(f"expected a string, got {kind}", file=file, line=line, field=field)
        yield line, record[id_field], record[value_field]


def _parse_records(lines: list[tuple[int, str]], file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield objects with their line numbers; in an array, with their positions, from 1."""
    if lines and lines[0][1].strip() == "{":  # one object on several lines
        yield lines[0][0], parse_object("\n".join(text for _, text in lines), file, lines[0][0])
        return
    if not lines or not lines[0][1].lstrip().startswith("["):
        for line, text in lines:
            yield line, parse_object(text, file, line)
        return
    try:
        records = json.loads("\n".join(text for _, text in lines))
    except json.JSONDecodeError as error:
        line = lines[error.lineno - 1][0]
        raise FormatError(f"not JSON: {error.msg} at column {error.colno}", file=file, line=line) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"cannot parse JSON: {error}", file=file) from None
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            message = f"element {number}: expected an object, got {describe_type(record)}"
            raise FormatError(message, file=file)
        yield number, record


def _index_by_id(entries: Iterator[Entry], file: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for line, key, value in entries:
        if values.setdefault(key, value) != value:
            hint = "; does each line start with an id?" if key.isalpha() else ""
            raise FormatError(f"duplicate id {key!r} with a different value{hint}", file=file, line=line)
    return values
