"""Segments of an stm as lists: reading, writing and reading back, and lists that an stm cannot hold."""

from __future__ import annotations

import io
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import InvalidList
from rescorer.formats.io.folders import read_sample
from rescorer.formats.nist import IGNORED_TEXT, format_segment_id, looks_like, read_lists, writer
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import TEXT, WORD

STM = """\
;; made by hand
call 1 ann 0.0 2.0 <o,f0> { hello / hi }  there
call 1 ann 2.0 1.5 wrong
call 1 bob 2.0 2.5 IGNORE_TIME_SEGMENT_IN_SCORING
call 1 ann 2.0 4.5
"""
SEGMENT_FIELDS = {"file": "call", "channel": "1", "start_s": 0.0, "end_s": 2.0}
FIRST = NBestList(
    "ann-000",
    (Hypothesis("{ hello / hi } there"),),
    group="ann",
    fields=SEGMENT_FIELDS | {"labels": "<o,f0>"},
)


def parse_lists(text: str) -> list:
    return list(read_lists(io.BytesIO(text.encode())))


def test_reads_segments_as_lists():
    first, error, last = parse_lists(STM)
    assert first == FIRST
    assert str(error) == "<stream>:3: end: 1.5 is before the start, 2"
    assert (last.id, last.hypotheses) == ("ann-001", (Hypothesis(""),))


NAME = WORD.filter(lambda name: not name.startswith(";"))
SECONDS = st.floats(0, 1e5)


@st.composite
def segments(draw: st.DrawFn) -> NBestList:
    text = draw(TEXT.filter(lambda text: not text.startswith("<") and IGNORED_TEXT not in text.lower()))
    start, end = sorted((draw(SECONDS), draw(SECONDS)))
    fields = {"file": draw(NAME), "channel": draw(NAME), "start_s": start, "end_s": end}
    labels = draw(st.sampled_from([{}, {"labels": "<o,f0>"}]))
    speaker = draw(st.sampled_from(["ann", "bob-000", "ü"]))
    return NBestList("", (Hypothesis(text),), group=speaker, fields=fields | labels)


@given(st.lists(segments(), max_size=5))
def test_reads_back_what_it_wrote(lists):
    last_numbers: dict[str, int] = {}
    for index, nbest in enumerate(lists):
        number = last_numbers[nbest.group] = last_numbers.get(nbest.group, -1) + 1
        lists[index] = replace(nbest, id=format_segment_id(nbest.group, number))
    with tempfile.TemporaryDirectory() as folder:
        with writer(Path(folder) / "out.stm.gz") as write:
            for nbest in lists:
                write(nbest)
        assert list(read_lists(Path(folder) / "out.stm.gz")) == lists


def test_takes_times_from_words_and_file_from_id(tmp_path):
    words = [
        {"word": "a", "start_s": 0.5, "duration_s": 0.25},
        {"word": "b", "start_s": 1, "duration_s": 0.5},
    ]
    with writer(tmp_path / "a.stm") as write:
        write(NBestList("call 2", (Hypothesis("a b", {"words": words}),), group="ann"))
    assert (tmp_path / "a.stm").read_text() == "call 2 ann 0.5 1.5 a b\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": ""}, "group: expected the speaker, without white space"),
        ({"group": "a b"}, "group: expected the speaker, without white space"),
        ({"fields": {}}, "words: expected the words with their times"),
        (
            {"fields": {}, "id": "a b c"},
            "id: expected the name of a file, optionally followed by a channel",
        ),
        ({"fields": SEGMENT_FIELDS | {"file": ";;a"}}, "file: starts with ;;, which marks a comment"),
        ({"fields": SEGMENT_FIELDS | {"channel": 1}}, "channel: expected the channel, without white space"),
        ({"fields": SEGMENT_FIELDS | {"end_s": -1.0}}, "end_s: expected times in seconds with 0 <= start"),
        ({"fields": SEGMENT_FIELDS | {"end_s": "2"}}, "end_s: expected times in seconds with 0 <= start"),
        ({"fields": SEGMENT_FIELDS | {"labels": "o"}}, "labels: expected labels in the form <A,B,C>"),
        ({"hypotheses": (Hypothesis("<a> b"),), "fields": SEGMENT_FIELDS}, "text: would be read as labels"),
        ({"hypotheses": (Hypothesis(IGNORED_TEXT.upper()),)}, "or as a segment excluded from scoring"),
        ({"hypotheses": (Hypothesis("a\nb"),)}, "contains a line break"),
    ],
)
def test_rejects_lists_that_are_not_segments(tmp_path, change, message):
    with writer(tmp_path / "a.stm") as write:
        write(FIRST)
        with pytest.raises(InvalidList) as caught:
            write(replace(FIRST, **change))
    assert message in str(caught.value)
    assert list(read_lists(tmp_path / "a.stm")) == [FIRST]


@pytest.mark.parametrize(
    ("name", "text", "is_stm"),
    [
        ("a", STM, True),
        ("a", "call 1 2001-A 0 1 a\n", True),
        ("a", "call 1 0.5 0.25 5\n", False),  # a ctm of digits
        ("a", ";; nothing else\n", False),
        ("a.stm.gz", "call 1 2001 0 1 a\n", True),
        ("a", "", False),
    ],
)
def test_distinguishes_stm_from_ctm(tmp_path, name, text, is_stm):
    (tmp_path / name).write_text(text)
    assert bool(looks_like(read_sample(tmp_path / name))) == is_stm
