"""Text files of NeMo, CUED-RNNLM and Mikolov's rnnlm: golden files, round trips and invalid input."""

from __future__ import annotations

import gzip
import io
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats import nemo, plain_text
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import TEXT, lists_match, nbest_lists, several, write_truncated_gzip

NEMO = "yeah well\t-3.5\n\t-4\na\tb\t-1e1\nend\t-2\n"
CUED = "u-1 -2301.5 -18.42 4 <s> yeah well </s>\nu-1 -2310 -17 0 <s> </s>\n7 1.5 -1 2 a b\n"
MIKOLOV = "u1 yeah well\nu1\nu2 -1.5 a\n"


def read(reader, text: str | bytes, **options) -> list:
    return list(reader(io.BytesIO(text.encode() if isinstance(text, str) else text), **options))


def read_file(reader, path: Path, **options) -> list:
    return list(reader(path, **options))


def round_trip(lists, writer, reader, **options) -> list:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.gz"
        with writer(path, **options) as write:
            for nbest in lists:
                write(nbest)
        return list(reader(path, **options))


def encode_variants(text: str) -> list[bytes]:
    """Return the text compressed, and with a byte order mark and carriage returns."""
    return [gzip.compress(text.encode()), ("\ufeff" + text.replace("\n", "\r\n")).encode()]


def test_nemo_list_is_one_beam_of_lines():
    first, second = lists = read(nemo.read_nemo, NEMO, beam=2)
    assert first == NBestList("1", (Hypothesis("yeah well"), Hypothesis("")), {"first_pass": (-3.5, -4.0)})
    assert second == NBestList("2", (Hypothesis("a\tb"), Hypothesis("end")), {"first_pass": (-10.0, -2.0)})
    assert all(read(nemo.read_nemo, variant, beam=2) == lists for variant in encode_variants(NEMO))


@given(st.integers(1, 3), st.data())
def test_nemo_round_trip(beam, data):
    scores = st.lists(st.floats(-1e6, 1e6), min_size=beam, max_size=beam).map(tuple)
    texts = st.lists(TEXT, min_size=beam, max_size=beam)
    drawn = data.draw(st.lists(st.tuples(texts, scores), max_size=3))
    lists = [
        NBestList(str(position), tuple(map(Hypothesis, texts)), {"first_pass": scores})
        for position, (texts, scores) in enumerate(drawn, start=1)
    ]
    assert round_trip(lists, nemo.nemo_writer, nemo.read_nemo, beam=beam) == lists


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NEMO + "left\t-1\n", "<stream>:5, list '3': 1 line is left for a beam of 2; is the beam size"),
        (NEMO + "a\t-1\nb\tnan\n", "<stream>:6, list '3', hypothesis 1, first_pass: the score is nan"),
        (NEMO + "a\ttensor(-12.9)\nb\t-1\n", "<stream>:5, list '3', hypothesis 0, first_pass: 'tensor(-1"),
        (NEMO + "no score\n\n", "first_pass: 'no score' is not a number"),
        (NEMO.encode() + b"\xff\t-1\nb\t-1\n", "<stream>:5: not UTF-8"),
    ],
)  # fmt: skip
def test_yields_error_with_place_for_invalid_nemo_list(text, message):
    *valid, error = read(nemo.read_nemo, text, beam=2)
    assert [nbest.id for nbest in valid] == ["1", "2"]
    assert message in str(error)


def write_beams(path, beam, *, n_lists=40, order=-1, extra=0):
    """Write beams of random sentences: each hypothesis lacks one word of the first one."""
    draw = Random(f"{beam} {n_lists}")
    lines = []
    for _ in range(n_lists):
        words = [f"w{draw.randrange(1000)}" for _ in range(10)]
        scores = sorted((-draw.uniform(1, 30) for _ in range(beam)), key=lambda score: order * score)
        texts = [" ".join(words[:i] + words[i + 1 :] if i else words) for i in range(beam)]
        lines += [f"{text}\t{score!r}\n" for text, score in zip(texts, scores, strict=True)]
    path.write_text("".join(lines + lines[:extra]))
    return path


@pytest.mark.parametrize("beam", [2, 4, 9])
def test_nemo_beam_size_follows_from_the_order_of_scores(tmp_path, beam):
    path = write_beams(tmp_path / "beams.tsv", beam)
    assert read_file(nemo.read_nemo, path) == read_file(nemo.read_nemo, path, beam=beam)


@pytest.mark.parametrize(
    ("beam", "change"),
    [
        (1, {}),
        (4, {"n_lists": 5}),  # too few lists to be certain
        (4, {"order": 1}),  # the best comes last
        (4, {"extra": 1}),  # the last list is not whole
    ],
)
def test_nemo_beam_size_is_not_guessed(tmp_path, beam, change):
    path = write_beams(tmp_path / "beams.tsv", beam, **change)
    with pytest.raises(ConfigError, match="give beam=N"):
        read_file(nemo.read_nemo, path)


def test_nemo_lists_of_two_utterances_are_no_beams(tmp_path):
    lines = [(f"a{i} b{i} c{i}", f"{s - 20 * (i % 2)}") for i in range(60) for s in (-1, -2, -3)]
    (tmp_path / "beams.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    assert nemo.find_beam(tmp_path / "beams.tsv") == 0


def test_nemo_requires_beam_size(tmp_path):
    with pytest.raises(ConfigError, match=r"do not state the beam size, .* give beam=N"):
        read(nemo.read_nemo, NEMO)
    with pytest.raises(ConfigError, match="give beam=N"), nemo.nemo_writer(tmp_path / "out"):
        pass
    nbest = NBestList("u1", (Hypothesis("a"),), {"first_pass": (-1.0,)})
    with nemo.nemo_writer(tmp_path / "out", beam=1) as write:
        for change, message in (
            ({"hypotheses": nbest.hypotheses * 2}, "expected 1 hypothesis as in every list, got 2"),
            ({"hypotheses": (Hypothesis("a\nb"),)}, "contains a line break"),
            ({"streams": {}}, "first_pass: the format needs this stream"),
        ):
            with pytest.raises(InvalidList, match=message):
                write(replace(nbest, **change))
        write(nbest)
    assert (tmp_path / "out").read_text() == "a\t-1.0\n"


def test_groups_consecutive_cued_lines_and_removes_sentence_marks():
    first, second = lists = read(plain_text.read_cued, CUED, base="10")
    assert first.id == "u-1"
    assert first.hypotheses == (Hypothesis("yeah well", {"nwords": 4}), Hypothesis("", {"nwords": 0}))
    assert first.streams["acoustic"] == pytest.approx((-2301.5 * math.log(10), -2310 * math.log(10)))
    assert (second.id, second.hypotheses[0].text) == ("7", "a b")
    assert all(read(plain_text.read_cued, variant, base="10") == lists for variant in encode_variants(CUED))
    assert read(plain_text.read_cued, CUED, base="e")[0].streams["lm"] == (-18.42, -17.0)


CUED_LISTS = nbest_lists(["acoustic", "lm"], fields=lambda text: {"nwords": len(text)})


@given(several(CUED_LISTS), st.sampled_from(["e", "10"]))
def test_cued_round_trip(lists, base):
    assert lists_match(round_trip(lists, plain_text.cued_writer, plain_text.read_cued, base=base), lists)


@given(several(nbest_lists()))
def test_mikolov_round_trip(lists):
    assert round_trip(lists, plain_text.mikolov_writer, plain_text.read_mikolov) == lists


def test_mikolov_lists_have_no_scores():
    first, second = read(plain_text.read_mikolov, MIKOLOV)
    assert first == NBestList("u1", (Hypothesis("yeah well"), Hypothesis("")))
    assert second == NBestList("u2", (Hypothesis("-1.5 a"),))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("u1 -1 -2", "<stream>:2: expected id, acoustic score, LM score, number of words, words"),
        ("u1 -1 -2 some words", "<stream>:2: expected id, acoustic score"),
        ("u1 -1 nan 1 a", "<stream>:2, list 'u1', hypothesis 1, lm: the score is nan"),
        ("u1 tensor(-12.9) -1 1 a", "hypothesis 1, acoustic: 'tensor(-12.9)' is not a number"),
        ("u1 \xff", "<stream>:2: not UTF-8"),
    ],
)
def test_rejects_only_the_list_with_a_bad_cued_line(line, message):
    text = f"u1 -1 -2 1 a\n{line}\nu1 -1 -2 1 b\nu2 -1 -2 1 a\n".encode("latin-1")
    error, valid = read(plain_text.read_cued, text, base="e")
    assert message in str(error)
    assert valid.id == "u2"


def test_rejects_duplicate_ids_and_missing_bases(tmp_path):
    *_, error = read(plain_text.read_mikolov, MIKOLOV + "u1 again\n")
    assert "<stream>, list 'u1': duplicate id" in str(error)
    with pytest.raises(ConfigError, match="expected base=e or base=10, got nothing"):
        read(plain_text.read_cued, CUED)
    with pytest.raises(ConfigError, match="got base=2"), plain_text.cued_writer(tmp_path / "out", base="2"):
        pass


def test_truncated_file_ends_with_an_error(tmp_path):
    write_truncated_gzip(tmp_path / "a.gz", CUED)
    assert isinstance(list(plain_text.read_cued(tmp_path / "a.gz", base="e"))[-1], FormatError)
    assert "damaged gzip" in str(list(plain_text.read_mikolov(tmp_path / "a.gz"))[-1])
    assert "damaged gzip" in str(list(nemo.read_nemo(tmp_path / "a.gz", beam=7))[-1])


def test_writers_reject_lists_that_lines_cannot_hold(tmp_path):
    with plain_text.mikolov_writer(tmp_path / "out") as write:
        write(NBestList("u1", (Hypothesis("a"),)))
        for nbest, message in (
            (NBestList("u1", (Hypothesis("a"),)), "already written"),
            (NBestList("u 2", (Hypothesis("a"),)), "expected a non-empty id without white space"),
            (NBestList("u2", (Hypothesis("a\nb"),)), "contains a line break"),
        ):
            with pytest.raises(InvalidList, match=message):
                write(nbest)
    assert (tmp_path / "out").read_text() == "u1 a\n"
    with (
        plain_text.cued_writer(tmp_path / "out", base="e") as write,
        pytest.raises(InvalidList, match="acoustic: the format needs this stream"),
    ):
        write(NBestList("u1", (Hypothesis("a"),)))
