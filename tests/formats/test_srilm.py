"""SRILM's three n-best formats: golden files, round trips, and what becomes of bad input."""

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

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.nbest.srilm import fused_writer, read_lists, words_writer, writer
from rescorer.formats.nist.trn_ctm import ctm_writer
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import lists_match, nbest_lists, several, write_truncated_gzip

COLUMNS = "-2301.5 -18.42 4 yeah well my sue\n-2310 -17.25 3 yeah well -pau-\n-2400.25 -3 0\n"
ONE = "NBestList1.0\n(-103298) yeah well my sue\n(-103377) -pau- yeah\n(-110000)\n"
TWO = (
    "NBestList2.0\n"
    "(-103298) -pau- ( st: 0.00 et: 0.48 g: -192 a: -4528 ) yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 ) "
    "y ( st: 0.49 et: 0.60 g: 0 a: -4000 ) y-1 ( st: 0.49 et: 0.52 g: 0 a: -900 )\n"
    "(-103377) well ( st: 0.00 et: 0.48 g: -1 a: -2 )\n"
)
BYTELOG = 1024 / 10000.5
LN_10 = math.log(10)


def only(path: Path) -> NBestList:
    (nbest,) = read_lists(path)
    assert isinstance(nbest, NBestList), nbest
    return nbest


def write(lists, target, writer=writer, **options) -> None:
    with writer(target, **options) as put:
        for nbest in lists:
            put(nbest)


ENCODINGS = {
    "plain": str.encode,
    "gzip": lambda text: gzip.compress(text.encode()),
    "other ends and a mark": lambda text: ("\ufeff" + text.replace("\n", "\r\n")).encode(),
}


@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)
def test_three_columns_are_log10_and_the_name_is_the_id(tmp_path, encode):
    name = "sw 2001-A_000.gz" if encode("x")[:1] == b"\x1f" else "sw 2001-A_000"
    (tmp_path / name).write_bytes(encode(COLUMNS))
    nbest = only(tmp_path / name)
    assert nbest.id == "sw 2001-A_000"
    assert nbest.hypotheses == (
        Hypothesis("yeah well my sue", {"nwords": 4}),
        Hypothesis("yeah well -pau-", {"nwords": 3}),
        Hypothesis("", {"nwords": 0}),
    )
    assert nbest.streams["acoustic"] == pytest.approx((-2301.5 * LN_10, -2310 * LN_10, -2400.25 * LN_10))
    assert nbest.streams["lm"] == pytest.approx((-18.42 * LN_10, -17.25 * LN_10, -3 * LN_10))


def test_version_1_is_one_fused_score_in_bytelogs(tmp_path):
    (tmp_path / "u1").write_text(ONE)
    nbest = only(tmp_path / "u1")
    assert [each.text for each in nbest.hypotheses] == ["yeah well my sue", "-pau- yeah", ""]
    assert nbest.streams == {"first_pass": tuple(b * BYTELOG for b in (-103298, -103377, -110000))}


def test_version_2_leaves_phones_and_states_out_and_sums_the_words(tmp_path):
    (tmp_path / "u1").write_text(TWO)
    nbest = only(tmp_path / "u1")
    assert [each.text for each in nbest.hypotheses] == ["-pau- yeah", "well"]
    assert nbest.streams["acoustic"] == pytest.approx(((-4528 - 8634) * BYTELOG, -2 * BYTELOG))
    assert nbest.streams["lm"] == pytest.approx((-512 * BYTELOG, -1 * BYTELOG))
    assert nbest.streams["first_pass"][0] == -103298 * BYTELOG
    words = nbest.hypotheses[0].fields["words"]
    assert words[1] == {"word": "yeah", "start_s": 0.49, "duration_s": 0.46, "lm": -320, "acoustic": -8634}


def test_version_2_comes_out_as_ctm(tmp_path):
    (tmp_path / "u1").write_text(TWO)
    with ctm_writer(tmp_path / "out.ctm") as put:
        put(only(tmp_path / "u1"))
    assert (tmp_path / "out.ctm").read_text() == "u1 1 0.0 0.49 -pau-\nu1 1 0.49 0.46 yeah\n"


def test_a_folder_is_read_in_the_order_of_names_and_an_id_twice_is_told(tmp_path):
    (tmp_path / "b").write_text(COLUMNS)
    (tmp_path / "a.gz").write_bytes(gzip.compress(ONE.encode()))
    (tmp_path / "b.gz").write_bytes(gzip.compress(COLUMNS.encode()))
    (tmp_path / ".hidden").write_text("x")
    first, second, fault = read_lists(tmp_path)
    assert (first.id, second.id) == ("a", "b")
    assert str(fault) == f"{tmp_path / 'b.gz'}: duplicate id 'b'; already read from {tmp_path / 'b'}"


@given(several(nbest_lists(["acoustic", "lm"], fields=lambda text: {"nwords": len(text)})))
def test_columns_that_are_written_are_read_back(lists):
    with tempfile.TemporaryDirectory() as folder:
        write(lists, Path(folder) / "new")
        assert lists_match(list(read_lists(Path(folder) / "new")), lists)


@given(
    several(nbest_lists(["first_pass"], numbers=st.integers(-200_000, 200_000).map(lambda b: b * BYTELOG)))
)
def test_whole_bytelogs_that_are_written_are_read_back(lists):
    with tempfile.TemporaryDirectory() as folder:
        write(lists, Path(folder), fused_writer)
        assert lists_match(list(read_lists(folder)), lists)


SCORE = st.integers(-9000, 100)


@st.composite
def timed_lists(draw: st.DrawFn) -> NBestList:
    """Lists as version 2.0 has them: words one after another, scores those of the words."""
    scores = st.integers(-200_000, 0).map(lambda b: b * BYTELOG)
    nbest = draw(nbest_lists(["first_pass"], numbers=scores))
    hypotheses, streams = [], {"acoustic": [], "lm": []}
    for each in nbest.hypotheses:
        frame, words = 0, []
        for word in (f"{word}x" for word in each.text.split(" ") if word):
            start, frames = frame + draw(st.integers(0, 30)), draw(st.integers(1, 99))
            frame = start + frames
            times = {"start_s": start / 100, "duration_s": frames / 100}
            words.append({"word": word, **times, "lm": draw(SCORE), "acoustic": draw(SCORE)})
        hypotheses.append(Hypothesis(" ".join(each["word"] for each in words), {"words": words}))
        for name, values in streams.items():
            values.append(sum(each[name] for each in words) * BYTELOG)
    return replace(nbest, hypotheses=tuple(hypotheses), streams={**nbest.streams, **streams})


@given(several(timed_lists()))
def test_words_with_times_that_are_written_are_read_back(lists):
    with tempfile.TemporaryDirectory() as folder:
        write(lists, Path(folder), words_writer)
        assert lists_match(list(read_lists(folder)), lists)


def test_scores_of_words_that_have_none_are_those_of_the_first(tmp_path):
    words = [
        {"word": word, "start_s": start, "duration_s": 0.25} for word, start in (("a", 0.5), ("b", 0.75))
    ]
    scores = {"first_pass": (-1.0,), "acoustic": (-100.0,)}
    nbest = NBestList("u1", (Hypothesis("a b", {"words": words}),), scores)
    write([nbest], tmp_path, words_writer, missing=0.0)
    assert (tmp_path / "u1").read_text() == (
        "NBestList2.0\n(-10) a ( st: 0.5 et: 0.74 g: 0 a: -977 ) b ( st: 0.75 et: 0.99 g: 0 a: 0 )\n"
    )


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("a", None, "words: expected the words with their times, which the format needs"),
        ("a", [("b", 0.5)], "words: are not the words of the text; expected the same"),
        ("a b", [("a", 0.5), ("b", 0.6)], "words: 'b' at 0.6 s would be read as a phone of the word before"),
        ("a-1", [("a-1", 0.5)], "words: 'a-1' at 0.5 s would be read as a phone"),
        ("", [], "acoustic: the words' scores are 0 bytelogs together, the hypothesis's -19.5"),
        (
            "a",
            [("a", 0.5, -3)],
            "acoustic: the words' scores are -3 bytelogs together, the hypothesis's -19.5",
        ),
    ],
)
def test_what_version_2_cannot_hold_is_refused(tmp_path, text, words, said):
    fields = {}
    if words is not None:
        names = ("word", "start_s", "acoustic")
        timed = [dict(zip(names, each, strict=False)) | {"duration_s": 0.25} for each in words]
        fields = {"words": timed}
    scores = {"first_pass": (-1.0,), "acoustic": (-2.0,), "lm": (0.0,)}
    with pytest.raises(InvalidList) as caught:
        write([NBestList("u1", (Hypothesis(text, fields),), scores)], tmp_path / "new", words_writer)
    assert said in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-1 -2 1 a\n-1 -2\n", "u1:2: expected log10 acoustic, log10 LM, number of words, words"),
        ("a b c d\n", "u1:1: expected log10 acoustic, log10 LM"),
        ("-1 -2 -3 a\n", "u1:1: expected log10 acoustic, log10 LM"),
        (
            "-1 -2 1 a\nnan -2 1 b\n",
            "u1:2, list 'u1', hypothesis 1, acoustic: the score is nan; expected a finite",
        ),
        ("-1 -inf 1 a\n", "u1:1, list 'u1', hypothesis 0, lm: the score is -inf"),
        ("tensor(-12.9) -2 1 a\n", "hypothesis 0, acoustic: 'tensor(-12.9)' is not a number"),
        ("1_000 -2 1 a\n", "'1_000' is not a number"),
        ("", "list 'u1': no hypotheses; expected at least one"),
        ("NBestList1.0\nyeah\n", "u1:2: expected (score) words"),
        ("NBestList1.0\n(x) yeah\n", "hypothesis 0, first_pass: 'x' is not a number"),
        ("NBestList2.0\n(-1) yeah\n", "u1:2: expected WORD ( st: T et: T g: B a: B ), not 'yeah'"),
        ("NBestList2.0\n(-1) a ( st: 0 et: 1 g: 1 a: nan )\n", "u1:2: expected finite numbers"),
        ("NBestList2.0\n(-1) a ( st: 0 et: 1 g: 1 a: ? )\n", "u1:2: could not convert string to float: '?'"),
    ],
)
def test_bad_input_says_where(tmp_path, text, said):
    (tmp_path / "u1").write_text(text)
    (fault,) = read_lists(tmp_path / "u1")
    assert said in str(fault)


def test_a_damaged_file_is_no_list_and_the_next_is_read(tmp_path):
    write_truncated_gzip(tmp_path / "a.gz", COLUMNS)
    (tmp_path / "b").write_bytes(b"-1 -2 1 \xff\n")
    (tmp_path / "c").write_text(COLUMNS)
    truncated, no_text, good = read_lists(tmp_path)
    assert "damaged gzip data" in str(truncated) or "expected log10" in str(truncated)
    assert "b:1: not UTF-8" in str(no_text)
    assert good.id == "c"


def test_a_source_without_a_name_or_files_is_refused(tmp_path):
    with pytest.raises(FormatError, match="the file name is the utterance id"):
        list(read_lists(io.BytesIO(b"")))
    with pytest.raises(FormatError, match="contains no utterances"):
        list(read_lists(tmp_path))
    with pytest.raises(FormatError, match="No such file"):
        list(read_lists(tmp_path / "none"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "a/b"}, "id: cannot be a file name"),
        ({"id": ".."}, "id: cannot be a file name"),
        ({"id": "u1.gz"}, "id: cannot be a file name"),
        ({"id": "ü" * 200}, "id: cannot be a file name"),
        ({"hypotheses": (Hypothesis("a\nb"),)}, "hypothesis 0, text: contains a line break"),
        (
            {"streams": {"acoustic": (-1.0,)}},
            "lm: the format needs this stream, but the list does not have it; its streams: acoustic",
        ),
    ],
)
def test_what_a_file_cannot_hold_is_refused_whole(tmp_path, change, said):
    whole = {"id": "u1", "hypotheses": (Hypothesis("a"),), "streams": {"acoustic": (-1.0,), "lm": (-2.0,)}}
    with pytest.raises(InvalidList) as caught:
        write([NBestList(**{**whole, **change})], tmp_path / "new")
    assert said in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    nbest = NBestList("u1", (Hypothesis("a"),), {"acoustic": (-1.0,)})
    write([nbest], tmp_path, missing=0.0)
    assert (tmp_path / "u1").read_text().endswith(" 0.0 1 a\n")
    with pytest.raises(
        InvalidList, match="exists already: either the id is a duplicate, or the folder was not empty"
    ):
        write([nbest], tmp_path, missing=0.0)
