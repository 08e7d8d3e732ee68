"""Read the header line of JSON lines, which declares the units of score streams."""

from __future__ import annotations

from typing import Any

from rescorer.errors import FormatError
from rescorer.formats.field_map import FieldMap
from rescorer.formats.io.json_records import describe_type, parse_object
from rescorer.formats.io.text_io import Source, read_lines, source_name
from rescorer.formats.score_units import Units

FORMAT = "rescorer-nbest"
VERSION = 1


def read_header(source: Source, names: FieldMap) -> str:
    """Return the header line of a file; an empty string if its first line is a list or cannot be read.

    Raises:
        FormatError: If the file is an array, whose lines are no lists.
    """
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            return ""
        if text.lstrip().startswith("["):
            message = "a JSON array cannot be divided at its lines; give --format json"
            raise FormatError(message, file=source_name(source))
        if text.strip():
            try:
                has_header = is_header(parse_object(text, source_name(source), line), names)
            except FormatError:
                return ""
            return text if has_header else ""
    return ""


def is_header(record: dict[str, Any], names: FieldMap) -> bool:
    """Whether the object of a first line is a header, not a list."""
    return "format" in record and names.hypotheses not in record


def parse_header(record: dict[str, Any], names: FieldMap, file: str, line: int | None) -> dict[str, Units]:
    """Return the units that the header declares, by stream name."""

    def invalid(message: str, field: str = "") -> FormatError:
        return FormatError(message, file=file, line=line, field=field)

    if record["format"] != FORMAT:
        raise invalid(f"unknown format {record['format']!r}; expected {FORMAT!r}", "format")
    if record.get("version") != VERSION or isinstance(record["version"], bool):
        raise invalid(f"unknown version {record.get('version')!r}; expected {VERSION}", "version")
    unknown = sorted(set(record) - {"format", "version", "streams"})
    if unknown:
        raise invalid(f"unknown header keys {unknown}; expected format, version and streams")
    streams = record.get("streams", {})
    if not isinstance(streams, dict):
        raise invalid(f"expected an object, got {describe_type(streams)}", "streams")
    declared = {}
    for name, units in streams.items():
        field = f'streams["{name}"]'
        if not isinstance(units, dict) or set(units) - {"base", "sign"}:
            raise invalid('expected an object with no keys but "base" and "sign"', field)
        if name in names.streams:
            raise invalid("declared both in the header and by an option", field)
        try:
            declared[name] = Units(**units)
        except ValueError as error:
            raise invalid(str(error), field) from None
    return declared
