"""Owns the lists of an stm: each segment with its words as the one hypothesis, as a trn's lines are lists.

A segment is called as sclite calls it, by its speaker and a number from 000; its file, channel, times and
labels are fields of the list, its speaker is the group. ``nist.py`` reads the syntax.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import LINE_BREAK, Write, format_texts, split_words
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.nist.trn_ctm import (
    COMMENT,
    IGNORED_TEXT,
    LABELS,
    is_stm,
    parse_channel,
    parse_stm,
)
from rescorer.formats.word_times import get_word_times, is_finite_number
from rescorer.types import Hypothesis, NBestList

PLACE = ("file", "channel", "start_s", "end_s")
FIELDS = frozenset({*PLACE, "labels"})
LINE = re.compile(r"\s*\S+\s+\S+\s+(?![\d.]+\s)\S+(\s+[\d.]+(e-?\d+)?){2}(\s.*)?")
"""Told from a line of a ctm by its speaker, who is called by more than a number."""


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Each segment that is scored as a list with one hypothesis.

    Raises:
        FormatError: the source cannot be opened.
    """
    name = source_name(source)
    numbers: Counter[str] = Counter()
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield text
        elif text.strip() and not text.startswith(COMMENT):
            try:
                segment = parse_stm(text, name, line)
            except FormatError as fault:
                yield fault
                continue
            if not segment.is_ignored:
                list_id = format_segment_id(segment.speaker, numbers[segment.speaker])
                numbers[segment.speaker] += 1
                fields = {field: getattr(segment, field) for field in PLACE}
                fields |= {"labels": segment.labels} if segment.labels else {}
                hypotheses = (Hypothesis(" ".join(split_words(segment.text))),)
                yield NBestList(list_id, hypotheses, group=segment.speaker, fields=fields)


def format_segment_id(speaker: str, number: int) -> str:
    """What sclite calls a speaker's segment, from 0."""
    return f"{speaker}-{number:03d}"


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Writes the first hypothesis of each list as a segment of its group, the speaker.

    File and channel are the list's fields of these names, or in its id as those of a ctm are; the times are
    its fields ``start_s`` and ``end_s``, or those of its words. A list without them is refused.
    """
    with open_output(target) as stream:
        yield lambda nbest: print(_line(nbest), file=stream)


def _line(nbest: NBestList) -> str:
    def fault(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=nbest.id, field=field)

    file, channel = (nbest.fields.get(name) for name in ("file", "channel"))
    if file is None and channel is None:
        file, channel = parse_channel(nbest)
    for field, value in (("file", file), ("channel", channel), ("group", nbest.group)):
        if not isinstance(value, str) or split_words(value) != [value] or LINE_BREAK.search(value):
            message = f"expected the {'speaker' if field == 'group' else field}, without white space"
            raise fault(message, field)
    if str(file).startswith(COMMENT):
        raise fault(f"cannot begin with {COMMENT}, as a comment does", "file")
    start, end = _times(nbest)
    if not (is_finite_number(start) and is_finite_number(end) and 0 <= start <= end):
        message = f"expected seconds, the start before the end, not {start!r} and {end!r}"
        raise fault(message, "end_s")
    labels, text = nbest.fields.get("labels", ""), format_texts(nbest)[0]
    if not isinstance(labels, str) or (labels and not LABELS.fullmatch(labels)):
        raise fault("expected labels, <A,B,C>", "labels")
    if (LABELS.match(text) and not labels) or IGNORED_TEXT in text.lower():
        raise fault("would be read as labels, or as a segment that is not scored", "text")
    return " ".join(filter(None, (file, channel, nbest.group, repr(start), repr(end), labels, text)))


def _times(nbest: NBestList) -> tuple[Any, Any]:
    """Of the segment; those of its words where it has none of its own."""
    own = nbest.fields.get("start_s"), nbest.fields.get("end_s")
    words = [] if own != (None, None) else get_word_times(nbest)
    if not words:
        return own
    return words[0]["start_s"], max(each["start_s"] + each["duration_s"] for each in words)


def looks_like(sample: Sample) -> str:
    """What says that a file is an stm; empty where nothing does."""
    lines = [text for text in sample.lines if not text.startswith(COMMENT)]
    if sample.is_folder or not (lines or is_stm(sample.path.name)):
        return ""
    if all(LINE.fullmatch(text) for text in lines):
        return "lines of file, channel, speaker, start, end and words"
    return "a file name that ends in .stm" if is_stm(sample.path.name) else ""
