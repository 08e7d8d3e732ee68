"""Read ctm and stm files that have no damage: the first line that cannot be read is raised."""

from __future__ import annotations

from collections.abc import Iterator

from rescorer.errors import FormatError
from rescorer.formats.io.text_io import Source, read_lines_strict, source_name
from rescorer.formats.nist import COMMENT, TAGS, Segment, TimedWord, parse_ctm, parse_stm


def read_ctm(source: Source) -> Iterator[TimedWord]:
    """Yield the words of a ctm without alternatives, in file order."""
    name = source_name(source)
    for line, text in _read_content_lines(source, ";"):
        word = parse_ctm(text, name, line)
        if word.word in TAGS:
            raise FormatError("alternatives in a ctm are not supported", file=name, line=line, field="word")
        yield word


def read_stm(source: Source) -> Iterator[Segment]:
    """Yield the segments of an stm in file order."""
    name = source_name(source)
    for line, text in _read_content_lines(source, COMMENT):
        yield parse_stm(text, name, line)


def _read_content_lines(source: Source, comment: str) -> Iterator[tuple[int, str]]:
    for line, text in read_lines_strict(source):
        if text.strip() and not text.startswith(comment):
            yield line, text
