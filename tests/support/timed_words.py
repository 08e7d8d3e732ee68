"""Align words of a ctm with the segments of an stm, where none of their lines are damaged."""

from __future__ import annotations

from collections.abc import Iterable

from rescorer.evaluation.list_errors import Timed, align_recordings
from rescorer.formats.nist import Channel, Recording, Segment
from rescorer.types import NBestList


def align_by_time(words: Iterable[Timed], segments: Iterable[Segment]) -> list[NBestList]:
    """Build a list with one hypothesis for each scored segment; see ``align_recordings``."""
    words_by_channel: dict[Channel, list[Timed]] = {}
    for word in words:
        words_by_channel.setdefault((word.file, word.channel), []).append(word)
    recordings = [Recording(*channel, tuple(found), 0) for channel, found in words_by_channel.items()]
    return [item for item in align_recordings(recordings, segments) if isinstance(item, NBestList)]
