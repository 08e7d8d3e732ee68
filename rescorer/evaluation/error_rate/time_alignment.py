"""Owns which words with times are scored against which segment of a reference with times, as in sclite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rescorer.errors import InputError
from rescorer.formats.nist.trn_ctm import Segment, TimedWord
from rescorer.types import Hypothesis, NBestList

Channel = tuple[str, str]


def lists_by_time(words: Iterable[TimedWord], segments: Iterable[Segment]) -> list[NBestList]:
    """A list with one hypothesis for each segment that is scored; its group is the speaker, its id the
    speaker's with a number, as sclite names them.

    In each file and channel, words and segments go side by side in the order of their files: a word belongs
    to the first segment that ends after the word's middle, what is left over to the last segment.

    Raises:
        InputError: there are words of a file and channel without segments.
    """
    spoken: dict[Channel, list[Segment]] = {}
    heard: dict[Channel, list[TimedWord]] = {}
    for segment in segments:
        spoken.setdefault((segment.file, segment.channel), []).append(segment)
    for word in words:
        heard.setdefault((word.file, word.channel), []).append(word)
    for file, channel in heard:
        if (file, channel) not in spoken:
            raise InputError(f"words of file {file!r}, channel {channel!r}, of which there is no reference")
    lists: list[NBestList] = []
    seen: dict[str, int] = {}
    for place, of_channel in spoken.items():
        for segment, text in _side_by_side(of_channel, heard.get(place, [])):
            if not segment.is_ignored:
                number = seen.get(segment.speaker, 0)
                seen[segment.speaker] = number + 1
                name = f"{segment.speaker}-{number:03d}"
                heard_here = (Hypothesis(text),)
                lists.append(NBestList(name, heard_here, reference=segment.text, group=segment.speaker))
    return lists


def _side_by_side(segments: list[Segment], words: list[TimedWord]) -> Iterator[tuple[Segment, str]]:
    place = 0
    for number, segment in enumerate(segments, start=1):
        start = place
        if number == len(segments):
            place = len(words)
        end_s = float(np.float32(segment.end_s))  # as sclite keeps it; decides where a middle is on the edge
        while place < len(words) and words[place].start_s + words[place].duration_s / 2 < end_s:
            place += 1
        yield segment, " ".join(word.word for word in words[start:place])
