"""Segments of an stm as lists: what is read, a round trip, and what a segment cannot hold."""

from __future__ import annotations

import io
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import InvalidList
from rescorer.formats.io.sniff import read_sample
from rescorer.formats.nist.stm import format_segment_id, looks_like, read_lists, writer
from rescorer.formats.nist.trn_ctm import IGNORED_TEXT
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import TEXT, WORD

STM = """\
;; made by hand
call 1 ann 0.0 2.0 <o,f0> { hello / hi }  there
call 1 ann 2.0 1.5 wrong
call 1 bob 2.0 2.5 IGNORE_TIME_SEGMENT_IN_SCORING
call 1 ann 2.0 4.5
"""
PLACE = {"file": "call", "channel": "1", "start_s": 0.0, "end_s": 2.0}
FIRST = NBestList(
    "ann-000", (Hypothesis("{ hello / hi } there"),), group="ann", fields=PLACE | {"labels": "<o,f0>"}
)


def read(text: str) -> list:
    return list(read_lists(io.BytesIO(text.encode())))


def test_a_segment_is_a_list():
    first, fault, last = read(STM)
    assert first == FIRST
    assert str(fault) == "<stream>:3: end: 1.5 is before the start, 2"
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
def test_what_is_written_is_read_back(lists):
    seen: dict[str, int] = {}
    for place, nbest in enumerate(lists):
        number = seen[nbest.group] = seen.get(nbest.group, -1) + 1
        lists[place] = replace(nbest, id=format_segment_id(nbest.group, number))
    with tempfile.TemporaryDirectory() as folder:
        with writer(Path(folder) / "out.stm.gz") as put:
            for nbest in lists:
                put(nbest)
        assert list(read_lists(Path(folder) / "out.stm.gz")) == lists


def test_times_and_file_may_come_from_words_and_id(tmp_path):
    words = [
        {"word": "a", "start_s": 0.5, "duration_s": 0.25},
        {"word": "b", "start_s": 1, "duration_s": 0.5},
    ]
    with writer(tmp_path / "a.stm") as put:
        put(NBestList("call 2", (Hypothesis("a b", {"words": words}),), group="ann"))
    assert (tmp_path / "a.stm").read_text() == "call 2 ann 0.5 1.5 a b\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": ""}, "group: expected the speaker, without white space"),
        ({"group": "a b"}, "group: expected the speaker, without white space"),
        ({"fields": {}}, "words: expected the words with their times"),
        ({"fields": {}, "id": "a b c"}, "id: expected the name of a file, optionally followed by a channel"),
        ({"fields": PLACE | {"file": ";;a"}}, "file: cannot begin with ;;"),
        ({"fields": PLACE | {"channel": 1}}, "channel: expected the channel, without white space"),
        ({"fields": PLACE | {"end_s": -1.0}}, "end_s: expected seconds, the start before the end"),
        ({"fields": PLACE | {"end_s": "2"}}, "end_s: expected seconds, the start before the end"),
        ({"fields": PLACE | {"labels": "o"}}, "labels: expected labels, <A,B,C>"),
        ({"hypotheses": (Hypothesis("<a> b"),), "fields": PLACE}, "text: would be read as labels"),
        ({"hypotheses": (Hypothesis(IGNORED_TEXT.upper()),)}, "or as a segment that is not scored"),
        ({"hypotheses": (Hypothesis("a\nb"),)}, "contains a line break"),
    ],
)
def test_what_a_segment_cannot_hold_is_refused(tmp_path, change, said):
    with writer(tmp_path / "a.stm") as put:
        put(FIRST)
        with pytest.raises(InvalidList) as caught:
            put(replace(FIRST, **change))
    assert said in str(caught.value)
    assert list(read_lists(tmp_path / "a.stm")) == [FIRST]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a", STM, True),
        ("a", "call 1 2001-A 0 1 a\n", True),
        ("a", "call 1 0.5 0.25 5\n", False),  # a ctm of digits
        ("a", ";; nothing else\n", False),
        ("a.stm.gz", "call 1 2001 0 1 a\n", True),
        ("a", "", False),
    ],
)
def test_an_stm_is_told_from_a_ctm(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    assert bool(looks_like(read_sample(tmp_path / name))) == told
