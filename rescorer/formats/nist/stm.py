"""Read and write stm files as lists: one list per segment, whose words are the only hypothesis.

As in sclite, the id of a segment is its speaker and a number, starting at 000. Its file, channel, times and
labels are fields of the list; its speaker is the group. The syntax is that of sclite's manual,
https://github.com/usnistgov/SCTK/blob/master/doc/infmts.htm; ``trn_ctm`` parses the lines. Only the text of a
segment excludes it from scoring: the speakers ``inter_segment_gap`` and ``excluded_region`` are like others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rescorer.errors import InputError, InvalidList
from rescorer.formats.common import LINE_BREAK, Write, format_texts, split_words
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output
from rescorer.formats.nist.trn_ctm import (
    COMMENT,
    CTM_EVIDENCE,
    LABELS,
    TRN_EVIDENCE,
    DamagedSegment,
    fit,
    fits_ctm,
    fits_stm,
    is_certain_stm,
    is_certain_trn,
    is_ctm,
    is_ignored,
    is_stm,
    is_trn,
    parse_channel,
    read_segments,
)
from rescorer.formats.word_times import get_word_times, is_finite_number
from rescorer.types import Hypothesis, NBestList

SEGMENT_FIELDS = ("file", "channel", "start_s", "end_s")
FIELDS = frozenset({*SEGMENT_FIELDS, "labels"})
"""Fields of a list that an stm file can hold."""
EVIDENCE = "lines of file, channel, speaker, start, end and words"
DAMAGED_SHARE = 0.5
"""How many lines of a file must fit a format for it to be taken for a damaged file of that format."""


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield each segment that is scored as a list with one hypothesis, or the line's error.

    Raises:
        FormatError: If the source cannot be opened.
    """
    numbers: Counter[str] = Counter()
    for segment in read_segments(source):
        if isinstance(segment, DamagedSegment):
            yield segment
        elif not segment.is_ignored:
            list_id = format_segment_id(segment.speaker, numbers[segment.speaker])
            numbers[segment.speaker] += 1
            fields = {field: getattr(segment, field) for field in SEGMENT_FIELDS}
            fields |= {"labels": segment.labels} if segment.labels else {}
            hypotheses = (Hypothesis(" ".join(split_words(segment.text))),)
            yield NBestList(list_id, hypotheses, group=segment.speaker, fields=fields)


def format_segment_id(speaker: str, number: int) -> str:
    """Return sclite's id of a speaker's segment; numbers start at 0."""
    return f"{speaker}-{number:03d}"


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write the first hypothesis of each list as a segment of its group, the speaker.

    File and channel come from the list fields of these names, or else from the id, as for a ctm. The times
    come from the list fields ``start_s`` and ``end_s``, or else from the word times; a list without times is
    rejected.
    """
    with open_output(target) as stream:
        yield lambda nbest: print(_format_line(nbest), file=stream)


def _format_line(nbest: NBestList) -> str:
    def error(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=nbest.id, field=field)

    file, channel = (nbest.fields.get(name) for name in ("file", "channel"))
    if file is None and channel is None:
        file, channel = parse_channel(nbest)
    for field, value in (("file", file), ("channel", channel), ("group", nbest.group)):
        if not isinstance(value, str) or split_words(value) != [value] or LINE_BREAK.search(value):
            what = "speaker" if field == "group" else field
            raise error(f"expected the {what}, without white space", field)
    if str(file).startswith(COMMENT):
        raise error(f"starts with {COMMENT}, which marks a comment", "file")
    start, end = _find_times(nbest)
    if not (is_finite_number(start) and is_finite_number(end) and 0 <= start <= end):
        message = f"expected times in seconds with 0 <= start <= end, got {start!r} and {end!r}"
        raise error(message, "end_s")
    labels, text = nbest.fields.get("labels", ""), format_texts(nbest)[0]
    if not isinstance(labels, str) or (labels and not LABELS.fullmatch(labels)):
        raise error("expected labels in the form <A,B,C>", "labels")
    if (LABELS.match(text) and not labels) or is_ignored(text):
        raise error("would be read as labels, or as a segment excluded from scoring", "text")
    return " ".join(filter(None, (file, channel, nbest.group, repr(start), repr(end), labels, text)))


def _find_times(nbest: NBestList) -> tuple[Any, Any]:
    """Return the start and end of a segment from the fields of the list, or else from its word times."""
    times = nbest.fields.get("start_s"), nbest.fields.get("end_s")
    words = [] if times != (None, None) else get_word_times(nbest)
    if not words:
        return times
    return words[0]["start_s"], max(word["start_s"] + word["duration_s"] for word in words)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file is an stm, or an empty string."""
    if sample.is_folder:
        return ""
    if fit(sample.lines, COMMENT, fits_stm, is_certain_stm):
        return EVIDENCE
    return "a file name that ends with .stm" if is_stm(sample.path.name) else ""


def find_damaged(sample: Sample) -> dict[str, str]:
    """Return which of trn, ctm and stm a file may be of which some lines cannot be read, with the evidence.

    For files that match no format as a whole: their first lines are no worse than others.
    """
    tests = (
        ("trn", COMMENT, is_trn, is_certain_trn, TRN_EVIDENCE),
        ("ctm", ";", fits_ctm, is_ctm, CTM_EVIDENCE),
        ("stm", COMMENT, fits_stm, is_certain_stm, EVIDENCE),
    )
    return {
        name: f"{evidence}, though not all"
        for name, comment, fits, is_certain, evidence in tests
        if not sample.is_folder and not sample.record
        if fit(sample.lines, comment, fits, is_certain, DAMAGED_SHARE)
    }
