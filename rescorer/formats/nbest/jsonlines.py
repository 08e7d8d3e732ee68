"""Read and write n-best lists as JSON lines, one list per line, with an optional header.

    {"format": "rescorer-nbest", "version": 1, "streams": {"acoustic": {"base": "10", "sign": "cost"}}}
    {"id": "u1", "hypotheses": [{"text": "a b", "scores": {"acoustic": 12.3}}], "reference": "a b"}

Unknown fields are kept and written back. Files with other field names are read through a ``FieldMap``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats.common import Write
from rescorer.formats.field_map import FieldMap
from rescorer.formats.io.json_records import parse_object
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.nbest.jsonlines_header import FORMAT, is_header, parse_header
from rescorer.formats.nbest.jsonlines_output import encode_list
from rescorer.formats.nbest.records import parse_record
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

DEFAULT_FIELDS = FieldMap()


def read_lists(
    source: Source,
    names: FieldMap = DEFAULT_FIELDS,
    group_of: Callable[[str], str] | None = None,
    first_line: int = 1,
    header: str = "",
) -> Iterator[NBestList | InputError]:
    """Yield the list of each line, or the error if the line is invalid; later lines are still read.

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
    declared: Mapping[str, Units] = {}
    first = first_line == 1
    if header and not first:
        declared = parse_header(parse_object(header, file, 1), names, file, 1)
    for line, text in read_lines(source, first=first_line):
        if isinstance(text, FormatError):
            yield text
        elif text.strip():
            try:
                record = parse_object(text, file, line)
            except FormatError as error:
                yield error
            else:
                if first and is_header(record, names):
                    declared = parse_header(record, names, file, line)
                else:
                    yield parse_record(record, names, declared, group_of, file, line)
        else:
            continue
        first = False


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one list per line.

    Args:
        target: File name, compressed if it ends in ``.gz``; ``-`` is standard output.
    """
    with open_output(target) as stream:
        yield lambda nbest: print(encode_list(nbest), file=stream)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    record = sample.record
    if record.get("format") == FORMAT:
        return f"a header line with the format {FORMAT!r}"
    has_hypotheses = isinstance(record.get("hypotheses"), list)
    return 'one JSON object per line, with "hypotheses"' if has_hypotheses else ""


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
