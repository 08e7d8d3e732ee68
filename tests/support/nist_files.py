"""Read NIST files that have no damaged lines, and assign words to segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from rescorer.errors import FormatError
from rescorer.evaluation.list_errors import Timed, align_recordings
from rescorer.formats.io.text_io import Source
from rescorer.formats.nist import Recording, Segment, read_recordings, read_segments
from rescorer.types import NBestList


def read_ctm(source: Source) -> Iterator[Timed]:
    """Yield the words of a ctm; raise the first error."""
    for item in read_recordings(source):
        if isinstance(item, FormatError):
            raise item
        yield from item.words


def read_stm(source: Source) -> Iterator[Segment]:
    """Yield the segments of an stm; raise the first error."""
    for item in read_segments(source):
        if isinstance(item, FormatError):
            raise item
        yield item


def align_by_time(words: Iterable[Timed], segments: Iterable[Segment]) -> list[NBestList]:
    """Return the lists of ``align_recordings``."""
    by_channel = groupby(words, lambda word: (word.file, word.channel))
    recordings = (Recording(*channel, tuple(found), 0) for channel, found in by_channel)
    lists = []
    for item in align_recordings(recordings, segments):
        assert isinstance(item, NBestList)
        lists.append(item)
    return lists
