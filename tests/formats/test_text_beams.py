"""NeMo's, CUED's and Mikolov's lines: golden files, round trips, and what becomes of bad input."""

from __future__ import annotations

import gzip
import io
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.nbest import nemo, rnnlm
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import TEXT, lists_match, nbest_lists, several, write_truncated_gzip

NEMO = "yeah well\t-3.5\n\t-4\na\tb\t-1e1\nend\t-2\n"
CUED = "u-1 -2301.5 -18.42 4 <s> yeah well </s>\nu-1 -2310 -17 0 <s> </s>\n7 1.5 -1 2 a b\n"
MIKOLOV = "u1 yeah well\nu1\nu2 -1.5 a\n"


def read(reader, text: str | bytes, **options) -> list:
    return list(reader(io.BytesIO(text.encode() if isinstance(text, str) else text), **options))


def round_trip(lists, writer, reader, **options) -> list:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.gz"
        with writer(path, **options) as put:
            for nbest in lists:
                put(nbest)
        return list(reader(path, **options))


def variants(text: str) -> list[bytes]:
    return [gzip.compress(text.encode()), ("\ufeff" + text.replace("\n", "\r\n")).encode()]


def test_nemo_lists_are_a_beam_of_lines():
    first, second = lists = read(nemo.read_lists, NEMO, beam=2)
    assert first == NBestList("1", (Hypothesis("yeah well"), Hypothesis("")), {"first_pass": (-3.5, -4.0)})
    assert second == NBestList("2", (Hypothesis("a\tb"), Hypothesis("end")), {"first_pass": (-10.0, -2.0)})
    assert all(read(nemo.read_lists, variant, beam=2) == lists for variant in variants(NEMO))


@given(st.integers(1, 3), st.data())
def test_nemo_lists_are_read_back(beam, data):
    scores = st.lists(st.floats(-1e6, 1e6), min_size=beam, max_size=beam).map(tuple)
    texts = st.lists(TEXT, min_size=beam, max_size=beam)
    drawn = data.draw(st.lists(st.tuples(texts, scores), max_size=3))
    lists = [
        NBestList(str(place), tuple(map(Hypothesis, texts)), {"first_pass": scores})
        for place, (texts, scores) in enumerate(drawn, start=1)
    ]
    assert round_trip(lists, nemo.writer, nemo.read_lists, beam=beam) == lists


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NEMO + "left\t-1\n", "<stream>:5, list '3': 1 lines are left for a beam of 2: is it another size?"),
        (NEMO + "a\t-1\nb\tnan\n", "<stream>:6, list '3', hypothesis 1, first_pass: the score is nan"),
        (NEMO + "a\ttensor(-12.9)\nb\t-1\n", "<stream>:5, list '3', hypothesis 0, first_pass: 'tensor(-1"),
        (NEMO + "no score\n\n", "first_pass: 'no score' is not a number"),
        (NEMO.encode() + b"\xff\t-1\nb\t-1\n", "<stream>:5: not UTF-8"),
    ],
)  # fmt: skip
def test_a_bad_nemo_list_says_where(text, said):
    *good, fault = read(nemo.read_lists, text, beam=2)
    assert [each.id for each in good] == ["1", "2"]
    assert said in str(fault)


def test_nemo_needs_its_beam(tmp_path):
    with pytest.raises(ConfigError, match="do not tell the beam size: give beam=N"):
        read(nemo.read_lists, NEMO)
    with pytest.raises(ConfigError, match="give beam=N"), nemo.writer(tmp_path / "out"):
        pass
    one = NBestList("u1", (Hypothesis("a"),), {"first_pass": (-1.0,)})
    with nemo.writer(tmp_path / "out", beam=1) as put:
        for change, said in (
            ({"hypotheses": one.hypotheses * 2}, "2 hypotheses; expected 1"),
            ({"hypotheses": (Hypothesis("a\nb"),)}, "holds a line break"),
            ({"streams": {}}, "first_pass: no such stream"),
        ):
            with pytest.raises(InvalidList, match=said):
                put(replace(one, **change))
        put(one)
    assert (tmp_path / "out").read_text() == "a\t-1.0\n"


def test_cued_lists_stand_together_and_marks_are_left_out():
    first, second = lists = read(rnnlm.read_cued, CUED, base="10")
    assert first.id == "u-1"
    assert first.hypotheses == (Hypothesis("yeah well", {"nwords": 4}), Hypothesis("", {"nwords": 0}))
    assert first.streams["acoustic"] == pytest.approx((-2301.5 * math.log(10), -2310 * math.log(10)))
    assert (second.id, second.hypotheses[0].text) == ("7", "a b")
    assert all(read(rnnlm.read_cued, variant, base="10") == lists for variant in variants(CUED))
    assert read(rnnlm.read_cued, CUED, base="e")[0].streams["lm"] == (-18.42, -17.0)


COLUMNS = nbest_lists(["acoustic", "lm"], fields=lambda text: {"nwords": len(text)})


@given(several(COLUMNS), st.sampled_from(["e", "10"]))
def test_cued_lists_are_read_back(lists, base):
    assert lists_match(round_trip(lists, rnnlm.cued_writer, rnnlm.read_cued, base=base), lists)


@given(several(nbest_lists()))
def test_mikolov_lists_are_read_back(lists):
    assert round_trip(lists, rnnlm.mikolov_writer, rnnlm.read_mikolov) == lists


def test_mikolov_lists_have_no_scores():
    first, second = read(rnnlm.read_mikolov, MIKOLOV)
    assert first == NBestList("u1", (Hypothesis("yeah well"), Hypothesis("")))
    assert second == NBestList("u2", (Hypothesis("-1.5 a"),))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("u1 -1 -2", "<stream>:2: expected id, acoustic score, LM score, number of words, words"),
        ("u1 -1 -2 some words", "<stream>:2: expected id, acoustic score"),
        ("u1 -1 nan 1 a", "<stream>:2, list 'u1', hypothesis 1, lm: the score is nan"),
        ("u1 tensor(-12.9) -1 1 a", "hypothesis 1, acoustic: 'tensor(-12.9)' is not a number"),
        ("u1 \xff", "<stream>:2: not UTF-8"),
    ],
)
def test_a_bad_cued_line_is_a_fault_of_its_list_and_the_next_is_read(line, said):
    text = f"u1 -1 -2 1 a\n{line}\nu1 -1 -2 1 b\nu2 -1 -2 1 a\n".encode("latin-1")
    fault, good = read(rnnlm.read_cued, text, base="e")
    assert said in str(fault)
    assert good.id == "u2"


def test_ids_met_before_and_bases_not_told_are_refused(tmp_path):
    *_, fault = read(rnnlm.read_mikolov, MIKOLOV + "u1 again\n")
    assert "<stream>, list 'u1': is here a second time" in str(fault)
    with pytest.raises(ConfigError, match="give base=e or base=10, not nothing"):
        read(rnnlm.read_cued, CUED)
    with pytest.raises(ConfigError, match="not base=2"), rnnlm.cued_writer(tmp_path / "out", base="2"):
        pass


def test_a_truncated_file_ends_with_its_fault(tmp_path):
    write_truncated_gzip(tmp_path / "a.gz", CUED)
    assert isinstance(list(rnnlm.read_cued(tmp_path / "a.gz", base="e"))[-1], FormatError)
    assert "damaged gzip" in str(list(rnnlm.read_mikolov(tmp_path / "a.gz"))[-1])
    assert "damaged gzip" in str(list(nemo.read_lists(tmp_path / "a.gz", beam=7))[-1])


def test_what_lines_cannot_hold_is_refused(tmp_path):
    with rnnlm.mikolov_writer(tmp_path / "out") as put:
        put(NBestList("u1", (Hypothesis("a"),)))
        for nbest, said in (
            (NBestList("u1", (Hypothesis("a"),)), "is there a second time"),
            (NBestList("u 2", (Hypothesis("a"),)), "a line's key cannot hold white space"),
            (NBestList("u2", (Hypothesis("a\nb"),)), "holds a line break"),
        ):
            with pytest.raises(InvalidList, match=said):
                put(nbest)
    assert (tmp_path / "out").read_text() == "u1 a\n"
    with (
        rnnlm.cued_writer(tmp_path / "out", base="e") as put,
        pytest.raises(InvalidList, match="acoustic: no such stream"),
    ):
        put(NBestList("u1", (Hypothesis("a"),)))
