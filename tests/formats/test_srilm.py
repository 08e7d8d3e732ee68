"""SRILM's three n-best formats: golden files, round trips and invalid input."""

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
from rescorer.formats.nist import ctm_writer
from rescorer.formats.srilm import nbestlist1_writer, nbestlist2_writer, read_srilm, srilm_writer
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import lists_match, nbest_lists, several, write_truncated_gzip

COLUMNS = "-2301.5 -18.42 4 yeah well my sue\n-2310 -17.25 3 yeah well -pau-\n-2400.25 -3 0\n"
NBESTLIST1 = "NBestList1.0\n(-103298) yeah well my sue\n(-103377) -pau- yeah\n(-110000)\n"
NBESTLIST2 = (
    "NBestList2.0\n"
    "(-103298) -pau- ( st: 0.00 et: 0.48 g: -192 a: -4528 ) yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 ) "
    "y ( st: 0.49 et: 0.60 g: 0 a: -4000 ) y-1 ( st: 0.49 et: 0.52 g: 0 a: -900 )\n"
    "(-103377) well ( st: 0.00 et: 0.48 g: -1 a: -2 )\n"
)
BYTELOG = 1024 / 10000.5
LN_10 = math.log(10)


def read_one(path: Path) -> NBestList:
    (nbest,) = read_srilm(path)
    assert isinstance(nbest, NBestList), nbest
    return nbest


def write_lists(lists, target, writer=srilm_writer, **options) -> None:
    with writer(target, **options) as write:
        for nbest in lists:
            write(nbest)


ENCODINGS = {
    "plain": str.encode,
    "gzip": lambda text: gzip.compress(text.encode()),
    "carriage returns and byte order mark": lambda text: ("\ufeff" + text.replace("\n", "\r\n")).encode(),
}


@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)
def test_reads_columns_in_log10_and_id_from_file_name(tmp_path, encode):
    name = "sw 2001-A_000.gz" if encode("x")[:1] == b"\x1f" else "sw 2001-A_000"
    (tmp_path / name).write_bytes(encode(COLUMNS))
    nbest = read_one(tmp_path / name)
    assert nbest.id == "sw 2001-A_000"
    assert nbest.hypotheses == (
        Hypothesis("yeah well my sue", {"nwords": 4}),
        Hypothesis("yeah well -pau-", {"nwords": 3}),
        Hypothesis("", {"nwords": 0}),
    )
    assert nbest.streams["acoustic"] == pytest.approx((-2301.5 * LN_10, -2310 * LN_10, -2400.25 * LN_10))
    assert nbest.streams["lm"] == pytest.approx((-18.42 * LN_10, -17.25 * LN_10, -3 * LN_10))


def test_nbestlist1_has_one_combined_score_in_bytelogs(tmp_path):
    (tmp_path / "u1").write_text(NBESTLIST1)
    nbest = read_one(tmp_path / "u1")
    assert [hypothesis.text for hypothesis in nbest.hypotheses] == ["yeah well my sue", "-pau- yeah", ""]
    assert nbest.streams == {"first_pass": tuple(b * BYTELOG for b in (-103298, -103377, -110000))}


def test_nbestlist2_skips_phones_and_states_and_sums_word_scores(tmp_path):
    (tmp_path / "u1").write_text(NBESTLIST2)
    nbest = read_one(tmp_path / "u1")
    assert [hypothesis.text for hypothesis in nbest.hypotheses] == ["-pau- yeah", "well"]
    assert nbest.streams["acoustic"] == pytest.approx(((-4528 - 8634) * BYTELOG, -2 * BYTELOG))
    assert nbest.streams["lm"] == pytest.approx((-512 * BYTELOG, -1 * BYTELOG))
    assert nbest.streams["first_pass"][0] == -103298 * BYTELOG
    words = nbest.hypotheses[0].fields["words"]
    assert words[1] == {"word": "yeah", "start_s": 0.49, "duration_s": 0.46, "lm": -320, "acoustic": -8634}


def test_nbestlist2_converts_to_ctm(tmp_path):
    (tmp_path / "u1").write_text(NBESTLIST2)
    with ctm_writer(tmp_path / "out.ctm") as write:
        write(read_one(tmp_path / "u1"))
    assert (tmp_path / "out.ctm").read_text() == "u1 1 0.0 0.49 -pau-\nu1 1 0.49 0.46 yeah\n"


def test_reads_folder_in_order_of_names_and_rejects_duplicate_ids(tmp_path):
    (tmp_path / "b").write_text(COLUMNS)
    (tmp_path / "a.gz").write_bytes(gzip.compress(NBESTLIST1.encode()))
    (tmp_path / "b.gz").write_bytes(gzip.compress(COLUMNS.encode()))
    (tmp_path / ".hidden").write_text("x")
    first, second, error = read_srilm(tmp_path)
    assert (first.id, second.id) == ("a", "b")
    assert str(error) == f"{tmp_path / 'b.gz'}: duplicate id 'b'; already read from {tmp_path / 'b'}"


@given(several(nbest_lists(["acoustic", "lm"], fields=lambda text: {"nwords": len(text)})))
def test_columns_round_trip(lists):
    with tempfile.TemporaryDirectory() as folder:
        write_lists(lists, Path(folder) / "new")
        assert lists_match(list(read_srilm(Path(folder) / "new")), lists)


@given(
    several(nbest_lists(["first_pass"], numbers=st.integers(-200_000, 200_000).map(lambda b: b * BYTELOG)))
)
def test_nbestlist1_round_trip(lists):
    with tempfile.TemporaryDirectory() as folder:
        write_lists(lists, Path(folder), nbestlist1_writer)
        assert lists_match(list(read_srilm(folder)), lists)


SCORE = st.integers(-9000, 100)


@st.composite
def timed_lists(draw: st.DrawFn) -> NBestList:
    """Lists that NBestList2.0 can hold: consecutive words whose scores sum to those of the hypothesis."""
    scores = st.integers(-200_000, 0).map(lambda b: b * BYTELOG)
    nbest = draw(nbest_lists(["first_pass"], numbers=scores))
    hypotheses, streams = [], {"acoustic": [], "lm": []}
    for hypothesis in nbest.hypotheses:
        frame, words = 0, []
        for word in (f"{word}x" for word in hypothesis.text.split(" ") if word):
            start, frames = frame + draw(st.integers(0, 30)), draw(st.integers(1, 99))
            frame = start + frames
            times = {"start_s": start / 100, "duration_s": frames / 100}
            words.append({"word": word, **times, "lm": draw(SCORE), "acoustic": draw(SCORE)})
        hypotheses.append(Hypothesis(" ".join(word["word"] for word in words), {"words": words}))
        for name, values in streams.items():
            values.append(sum(word[name] for word in words) * BYTELOG)
    return replace(nbest, hypotheses=tuple(hypotheses), streams={**nbest.streams, **streams})


@given(several(timed_lists()))
def test_nbestlist2_round_trip(lists):
    with tempfile.TemporaryDirectory() as folder:
        write_lists(lists, Path(folder), nbestlist2_writer)
        assert lists_match(list(read_srilm(folder)), lists)


def test_first_word_gets_the_scores_of_words_without_scores(tmp_path):
    words = [
        {"word": word, "start_s": start, "duration_s": 0.25} for word, start in (("a", 0.5), ("b", 0.75))
    ]
    scores = {"first_pass": (-1.0,), "acoustic": (-100.0,)}
    nbest = NBestList("u1", (Hypothesis("a b", {"words": words}),), scores)
    write_lists([nbest], tmp_path, nbestlist2_writer, missing=0.0)
    assert (tmp_path / "u1").read_text() == (
        "NBestList2.0\n(-10) a ( st: 0.5 et: 0.74 g: 0 a: -977 ) b ( st: 0.75 et: 0.99 g: 0 a: 0 )\n"
    )


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("a", None, "words: expected the words with their times, which the format needs"),
        ("a", [("b", 0.5)], "words: differ from the words of the text"),
        (
            "a b",
            [("a", 0.5), ("b", 0.6)],
            "words: 'b' at 0.6 s would be read as a phone of the previous word",
        ),
        ("a-1", [("a-1", 0.5)], "words: 'a-1' at 0.5 s would be read as a phone"),
        ("", [], "acoustic: the word scores sum to 0 bytelogs, but the hypothesis has -19.5"),
        (
            "a",
            [("a", 0.5, -3)],
            "acoustic: the word scores sum to -3 bytelogs, but the hypothesis has -19.5",
        ),
    ],
)
def test_nbestlist2_writer_rejects_lists_it_cannot_hold(tmp_path, text, words, message):
    fields = {}
    if words is not None:
        names = ("word", "start_s", "acoustic")
        timed = [dict(zip(names, word, strict=False)) | {"duration_s": 0.25} for word in words]
        fields = {"words": timed}
    scores = {"first_pass": (-1.0,), "acoustic": (-2.0,), "lm": (0.0,)}
    nbest = NBestList("u1", (Hypothesis(text, fields),), scores)
    with pytest.raises(InvalidList) as caught:
        write_lists([nbest], tmp_path / "new", nbestlist2_writer)
    assert message in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
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
        ("NBestList2.0\n(-1) yeah\n", "u1:2: expected WORD ( st: T et: T g: B a: B ), got 'yeah'"),
        ("NBestList2.0\n(-1) a ( st: 0 et: 1 g: 1 a: nan )\n", "u1:2: expected finite numbers"),
        ("NBestList2.0\n(-1) a ( st: 0 et: 1 g: 1 a: ? )\n", "u1:2: could not convert string to float: '?'"),
    ],
)
def test_yields_error_with_place_for_invalid_file(tmp_path, text, message):
    (tmp_path / "u1").write_text(text)
    (error,) = read_srilm(tmp_path / "u1")
    assert message in str(error)


def test_yields_errors_for_damaged_files_and_reads_on(tmp_path):
    write_truncated_gzip(tmp_path / "a.gz", COLUMNS)
    (tmp_path / "b").write_bytes(b"-1 -2 1 \xff\n")
    (tmp_path / "c").write_text(COLUMNS)
    truncated, not_text, valid = read_srilm(tmp_path)
    assert "damaged gzip data" in str(truncated) or "expected log10" in str(truncated)
    assert "b:1: not UTF-8" in str(not_text)
    assert valid.id == "c"


def test_rejects_source_without_name_or_files(tmp_path):
    with pytest.raises(FormatError, match="the file name is the utterance id"):
        list(read_srilm(io.BytesIO(b"")))
    with pytest.raises(FormatError, match="contains no utterances"):
        list(read_srilm(tmp_path))
    with pytest.raises(FormatError, match="No such file"):
        list(read_srilm(tmp_path / "none"))


@pytest.mark.parametrize(
    ("change", "message"),
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
def test_writes_nothing_of_a_list_that_a_file_cannot_hold(tmp_path, change, message):
    valid = {"id": "u1", "hypotheses": (Hypothesis("a"),), "streams": {"acoustic": (-1.0,), "lm": (-2.0,)}}
    with pytest.raises(InvalidList) as caught:
        write_lists([NBestList(**{**valid, **change})], tmp_path / "new")
    assert message in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


def test_overwrites_nothing(tmp_path):
    nbest = NBestList("u1", (Hypothesis("a"),), {"acoustic": (-1.0,)})
    write_lists([nbest], tmp_path, missing=0.0)
    assert (tmp_path / "u1").read_text().endswith(" 0.0 1 a\n")
    with pytest.raises(
        InvalidList, match="exists already: either the id is a duplicate, or the folder was not empty"
    ):
        write_lists([nbest], tmp_path, missing=0.0)
