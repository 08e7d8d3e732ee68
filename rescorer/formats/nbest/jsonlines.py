"""Read and write n-best lists as JSON: one list per line, or an array of them, with an optional header.

    {"format": "rescorer-nbest", "version": 1, "streams": {"acoustic": {"base": "10", "sign": "cost"}}}
    {"id": "u1", "hypotheses": [{"text": "a b", "scores": {"acoustic": 12.3}}], "reference": "a b"}

Unknown fields are kept and written back. Files with other field names are read through a ``FieldMap``; those
of some programs are known. Lists may also be the elements of an array, or take several lines each. If the
first list has neither an id nor a field that looks like one, the id of each list without one is its position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats.common import Write
from rescorer.formats.field_map import FieldMap
from rescorer.formats.io.json_records import describe_type, parse_object, parse_value
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.json_documents.documents import Document, UnusableFile, read_documents
from rescorer.formats.nbest.jsonlines_header import FORMAT, is_header, parse_header
from rescorer.formats.nbest.jsonlines_output import encode_list
from rescorer.formats.nbest.known_fields import has_lists, may_number
from rescorer.formats.nbest.records import parse_record
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

DEFAULT_FIELDS = FieldMap()
MANIFEST_KEYS = frozenset({"audio_filepath", "pred_text"})


def read_lists(
    source: Source,
    names: FieldMap = DEFAULT_FIELDS,
    group_of: Callable[[str], str] | None = None,
    first_line: int = 1,
    header: str = "",
) -> Iterator[NBestList | InputError]:
    """Yield every list, or the error if a line or record is invalid; later ones are still read.

    Args:
        source: File name, ``-`` for standard input, or a binary stream; plain or gzip.
        names: Field names used by the file.
        group_of: Function that returns the group (speaker) for a list id; used for lists without a group
            field.
        first_line: Number of the first line, if the source is a later part of a file.
        header: Header line of the file, for a later part of it.

    Raises:
        FormatError: If the source cannot be opened, or its header is invalid (without it, the meaning of the
            scores is unknown).
    """
    file = source_name(source)
    reader = _Reader(names, group_of, file, is_first=first_line == 1)
    if first_line == 1:
        return read_documents(source, file, reader.read_document, parse_value, prefers_lines=True)
    if header:
        reader.declared = parse_header(parse_object(header, file, 1), names, file, 1)
    return _read_part(source, first_line, reader)


def _read_part(source: Source, first_line: int, reader: _Reader) -> Iterator[NBestList | InputError]:
    """Read a later part of a file with one list per line."""
    for line, text in read_lines(source, first=first_line):
        if isinstance(text, FormatError):
            yield text
        elif text.strip():
            try:
                record = parse_object(text, reader.file, line)
            except FormatError as error:
                yield error
            else:
                yield from reader.read_record(record, line, str(line))


@dataclass(slots=True)
class _Reader:
    """Builds lists from the records of a file, of which the first may be a header."""

    names: FieldMap
    group_of: Callable[[str], str] | None
    file: str
    is_first: bool
    declared: Mapping[str, Units] = field(default_factory=dict)
    is_numbered: bool = False
    """Whether lists without an id get a number, because the first has none."""
    number: int = 0
    """Number of records that have been read."""

    def read_document(self, document: Document) -> Iterator[NBestList | InputError]:
        """Yield the list of a document that is a record, or the lists of an array of records."""
        cursor = document.cursor
        if cursor.peek() == "[":
            for index in cursor.read_elements():
                yield from self._read_value(cursor.read_value(), document.line, "", index)
        elif cursor.peek():
            label = "" if document.line is None else document.label
            yield from self._read_value(cursor.read_value(), document.line, label)

    def _read_value(
        self, record: Any, line: int | None, label: str, index: int | None = None
    ) -> Iterator[NBestList | InputError]:
        if isinstance(record, dict):
            yield from self.read_record(record, line, label)
            return
        self.number, self.is_first = self.number + 1, False
        place = "" if index is None else f"element {index + 1}: "
        message = f"{place}expected a JSON object, got {describe_type(record)}"
        yield FormatError(message, file=self.file, line=line)

    def read_record(
        self, record: dict[str, Any], line: int | None, label: str
    ) -> Iterator[NBestList | InputError]:
        """Yield the list of a record; nothing for a header. The label is its id if it has none.

        Raises:
            UnusableFile: If the record is an invalid header.
        """
        if self.is_first:
            self.is_first = False
            if is_header(record, self.names):
                try:
                    self.declared = parse_header(record, self.names, self.file, line)
                except FormatError as error:  # the meaning of the scores is unknown
                    raise UnusableFile(error.message, file=self.file, line=line, field=error.field) from None
                self.is_first = True
                return
            self.is_numbered = may_number(record, self.names)
        self.number += 1
        has_number = self.is_numbered and self.names.id not in record
        names = replace(self.names, id="") if has_number else self.names
        label = label or str(self.number)
        yield parse_record(record, names, self.declared, self.group_of, self.file, line, label)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one list per line.

    Args:
        target: File name, compressed if it ends in ``.gz``; ``-`` is standard output.
    """
    with open_output(target) as stream:
        yield lambda nbest: print(encode_list(nbest), file=stream)


@contextmanager
def array_writer(target: str | Path) -> Iterator[Write]:
    """Write an array with one list per line."""
    is_first = True
    with open_output(target) as stream:
        stream.write("[")

        def write(nbest: NBestList) -> None:
            nonlocal is_first
            record = encode_list(nbest)
            stream.write(f"{'' if is_first else ','}\n{record}")
            is_first = False

        yield write
        stream.write("\n]\n")


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has one list per line, or an empty string."""
    record = sample.record
    if record.get("format") == FORMAT:
        return f"a header line with the format {FORMAT!r}"
    name = "" if _is_manifest(record) else has_lists(record)
    return f'one JSON object per line, with "{name}"' if name else ""


def looks_like_documents(sample: Sample) -> str:
    """Return the evidence that a file has lists in an array, or on several lines each, or an empty string."""
    if sample.is_folder or sample.record or not sample.documents:
        return ""
    first = sample.documents[0]
    name = "" if _is_manifest(first[0] if isinstance(first, list) and first else first) else has_lists(first)
    return f'JSON {"arrays" if isinstance(first, list) else "objects"} with "{name}"' if name else ""


def _is_manifest(record: Any) -> bool:
    """Whether a record belongs to NeMo, whose manifests are a format of their own."""
    return isinstance(record, dict) and "hypotheses" not in record and bool(record.keys() & MANIFEST_KEYS)


def compile_group_pattern(pattern: str) -> Callable[[str], str]:
    r"""Return a function that extracts a list's group from its id.

    The group is the text matched by the pattern's only capturing group, as in ``^(\d+)-``, or empty if the id
    does not match.

    Raises:
        ConfigError: If the pattern is not a regular expression with exactly one capturing group.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a valid regular expression: {error}") from None
    if compiled.groups != 1:
        raise ConfigError(
            f"{pattern!r} is neither a file nor a regular expression with one group, such as '^(\\d+)-': it "
            f"has {compiled.groups} groups"
        )

    def group_of(list_id: str) -> str:
        match = compiled.search(list_id)
        return (match[1] or "") if match else ""

    return group_of
