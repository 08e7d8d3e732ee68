"""Assign timed words to the segments of a timed reference, as sclite does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rescorer.errors import InputError
from rescorer.formats.nist.trn_ctm import Segment, TimedWord
from rescorer.types import Hypothesis, NBestList

Channel = tuple[str, str]
"""Name of a file and a channel in it."""


def align_by_time(words: Iterable[TimedWord], segments: Iterable[Segment]) -> list[NBestList]:
    """Build a list with one hypothesis for each scored segment.

    The group of a list is its speaker; its id is the speaker with a running number, as in sclite.

    Words and segments of a file and channel are matched in file order: a word belongs to the first segment
    that ends after the middle of the word, and remaining words belong to the last segment.

    Raises:
        InputError: a file and channel has words but no segments.
    """
    segments_by_channel: dict[Channel, list[Segment]] = {}
    words_by_channel: dict[Channel, list[TimedWord]] = {}
    for segment in segments:
        segments_by_channel.setdefault((segment.file, segment.channel), []).append(segment)
    for word in words:
        words_by_channel.setdefault((word.file, word.channel), []).append(word)
    for file, channel in words_by_channel:
        if (file, channel) not in segments_by_channel:
            raise InputError(
                f"words of file {file!r}, channel {channel!r}, have no reference segments; add "
                "their lines to the stm, or leave the words out of the ctm"
            )
    lists: list[NBestList] = []
    next_number: dict[str, int] = {}
    for key, channel_segments in segments_by_channel.items():
        for segment, text in _assign_words(channel_segments, words_by_channel.get(key, [])):
            if not segment.is_ignored:
                number = next_number.get(segment.speaker, 0)
                next_number[segment.speaker] = number + 1
                list_id = f"{segment.speaker}-{number:03d}"
                hypotheses = (Hypothesis(text),)
                lists.append(NBestList(list_id, hypotheses, reference=segment.text, group=segment.speaker))
    return lists


def _assign_words(segments: list[Segment], words: list[TimedWord]) -> Iterator[tuple[Segment, str]]:
    position = 0
    for number, segment in enumerate(segments, start=1):
        start = position
        if number == len(segments):
            position = len(words)
        end_s = float(np.float32(segment.end_s))  # single precision as in sclite; decides exact ties
        while position < len(words) and words[position].start_s + words[position].duration_s / 2 < end_s:
            position += 1
        yield segment, " ".join(word.word for word in words[start:position])
