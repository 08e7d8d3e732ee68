"""Assign timed words to the segments of a timed reference, as sclite does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rescorer.errors import FormatError, InputError
from rescorer.formats.nist.stm import format_segment_id
from rescorer.formats.nist.trn_ctm import (
    Channel,
    Choice,
    DamagedSegment,
    LostRecording,
    Recording,
    Segment,
    TimedWord,
)
from rescorer.types import Hypothesis, NBestList

Timed = TimedWord | Choice


def align_by_time(words: Iterable[Timed], segments: Iterable[Segment]) -> list[NBestList]:
    """Build a list with one hypothesis for each scored segment.

    The group of a list is its speaker; its id is the speaker with a running number, as in sclite.

    Words and segments of a file and channel are matched in file order, and their names regardless of case: a
    word belongs to the first segment that ends after the middle of the word, and remaining words belong to
    the last segment. Alternatives stay together, and their latest middle counts.

    Raises:
        InputError: a file and channel has words but no segments.
    """
    words_by_channel: dict[Channel, list[Timed]] = {}
    for word in words:
        words_by_channel.setdefault((word.file, word.channel), []).append(word)
    recordings = [Recording(*channel, tuple(found), 0) for channel, found in words_by_channel.items()]
    return [item for item in align_recordings(recordings, segments) if isinstance(item, NBestList)]


def align_recordings(
    recordings: Iterable[Recording | FormatError], segments: Iterable[Segment | DamagedSegment]
) -> Iterator[NBestList | InputError]:
    """Yield the lists of ``align_by_time``, and one error in place of all lists of a damaged recording.

    A recording is damaged if a line of it cannot be read, of the ctm or of the stm: its words would be
    assigned to other segments.

    Raises:
        InputError: a file and channel has words but no segments, or no line of the stm can be read.
    """
    segments_by_channel, lost = _group_segments(segments)
    words_by_channel: dict[Channel, list[Timed]] = {}
    for item in recordings:
        if isinstance(item, LostRecording):
            lost.setdefault(_fold(item.channel), item)
        elif isinstance(item, FormatError):
            yield item
        elif (channel := _fold((item.file, item.channel))) in segments_by_channel:
            words_by_channel.setdefault(channel, []).extend(item.words)
        elif channel not in lost:
            raise InputError(
                f"words of file {item.file!r}, channel {item.channel!r}, have no reference segments; add "
                "their lines to the stm, or leave the words out of the ctm"
            )
    numbers: Counter[str] = Counter()
    for channel, found in segments_by_channel.items():
        words = words_by_channel.get(channel, [])
        for segment, text in _assign_words(found, words):
            if not segment.is_ignored:
                number = numbers[segment.speaker]
                numbers[segment.speaker] += 1
                if channel not in lost:
                    hypotheses = (Hypothesis(text),)
                    list_id = format_segment_id(segment.speaker, number)
                    yield NBestList(list_id, hypotheses, reference=segment.text, group=segment.speaker)
    yield from lost.values()


def _group_segments(
    segments: Iterable[Segment | DamagedSegment],
) -> tuple[dict[Channel, list[Segment]], dict[Channel, LostRecording]]:
    """The segments of each channel, and the channels with damaged ones.

    A damaged line that does not name its channel belongs to the one before it, or else to the first.
    """
    grouped: dict[Channel, list[Segment]] = {}
    lost: dict[Channel, LostRecording] = {}
    named: Channel | None = None
    errors: list[DamagedSegment] = []  # of lines whose channel is not known yet
    for segment in segments:
        if isinstance(segment, DamagedSegment):
            named = segment.channel or named
            errors.append(segment)
        else:
            named = segment.file, segment.channel
            grouped.setdefault(_fold(named), []).append(segment)
        if named is not None:
            for error in errors:
                lost.setdefault(_fold(named), LostRecording(named, error))
            errors.clear()
    if errors:
        raise errors[0]
    return grouped, lost


def _fold(channel: Channel) -> Channel:
    """Names of files and channels are the same regardless of case, as in sclite."""
    return channel[0].lower(), channel[1].lower()


def _assign_words(segments: Sequence[Segment], words: Sequence[Timed]) -> Iterator[tuple[Segment, str]]:
    position = 0
    for number, segment in enumerate(segments, start=1):
        start = position
        if number == len(segments):
            position = len(words)
        end_s = float(np.float32(segment.end_s))  # single precision as in sclite; decides exact ties
        while position < len(words) and words[position].middle_s < end_s:
            position += 1
        yield segment, " ".join(word.text for word in words[start:position])
