"""SRInterp files: golden files, round trips and invalid input."""

from __future__ import annotations

import gzip
import math
import tempfile

import pytest
from hypothesis import assume, given

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.io.folders import read_sample
from rescorer.formats.registry import choose
from rescorer.formats.srilm import looks_like_srinterp, read_srinterp, srinterp_writer
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import lists_match, nbest_lists, several, write_truncated_gzip

GOLDEN = "am=-2301.5 lm=-18.42 n-gram.5=2 yeah a=b\nlm=-3 am=-2310 n-gram.5=1\n"
LN_10 = math.log(10)


def test_reads_features_as_streams_in_the_given_base(tmp_path):
    (tmp_path / "u1").write_text(GOLDEN)
    (nbest,) = read_srinterp(tmp_path, base="10")
    assert nbest == NBestList(
        "u1",
        (Hypothesis("yeah a=b"), Hypothesis("")),
        {"am": (-2301.5 * LN_10, -2310 * LN_10), "lm": (-18.42 * LN_10, -3 * LN_10),
         "n-gram.5": (2 * LN_10, LN_10)},
    )  # fmt: skip
    (nbest,) = read_srinterp(tmp_path, base="e", sign="cost")
    assert nbest.streams["am"] == (2301.5, 2310.0)


def test_reads_gzip_carriage_returns_and_byte_order_marks(tmp_path):
    (tmp_path / "a").write_text(GOLDEN)
    (tmp_path / "a.gz").write_bytes(b"")
    (tmp_path / "b.gz").write_bytes(gzip.compress(("\ufeff" + GOLDEN.replace("\n", "\r\n")).encode()))
    plain, duplicate, changed = read_srinterp(tmp_path, base="e")
    assert (changed.id, changed.hypotheses, changed.streams) == ("b", plain.hypotheses, plain.streams)
    assert "duplicate id 'a'" in str(duplicate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give base=e"),
        (":base=ln", "base is 'ln'; expected"),
        (":base=e,sign=up", "sign is 'up'; expected"),
    ],
)
def test_rejects_missing_or_unknown_base_and_sign(tmp_path, options, message):
    for open_folder in (
        choose(f"srinterp{options}").read,
        lambda path: choose(f"srinterp{options}").writer(path).__enter__(),
    ):
        with pytest.raises(ConfigError, match=message):
            open_folder(tmp_path)


@given(several(nbest_lists(["am", "lm", "x.5"])))
def test_round_trip(lists):
    texts = [hypothesis.text for nbest in lists for hypothesis in nbest.hypotheses]
    assume(not any("=" in text.partition(" ")[0][1:] for text in texts))
    with tempfile.TemporaryDirectory() as folder:
        with srinterp_writer(folder, base="2", sign="cost") as write:
            for nbest in lists:
                write(nbest)
        assert lists_match(list(read_srinterp(folder, base="2", sign="cost")), lists)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("am=-1 a\nyeah am=-1\n", "u1:2: expected NAME=VALUE … words, got 'yeah am=-1'"),
        ("am=-1 am=-1 a\n", "u1:1: duplicate feature 'am'"),
        ("am=-1 a\nam=nan a\n", "u1:2, list 'u1', hypothesis 1, am: the score is nan"),
        ("am=tensor(-12.9) a\n", "u1:1, list 'u1', hypothesis 0, am: 'tensor(-12.9)' is not a number"),
        ("am=-1 a=b c\n", "hypothesis 0, a: 'b' is not a number"),
        (
            "am=-1 lm=-1 a\nam=-1 a\n",
            "hypothesis 1, lm: no score, though other hypotheses of the list have one",
        ),
        ("am= a\n", "hypothesis 0, am: '' is not a number"),
        ("=1 a\n", "u1:1: expected NAME=VALUE … words, got '=1 a'"),
        ("", "list 'u1': no hypotheses; expected at least one"),
    ],
)
def test_yields_error_with_place_for_invalid_file(tmp_path, text, message):
    (tmp_path / "u1").write_text(text)
    (error,) = read_srinterp(tmp_path / "u1", base="e")
    assert message in str(error)


def test_yields_errors_for_damaged_files_and_reads_on(tmp_path):
    write_truncated_gzip(tmp_path / "a.gz", GOLDEN)
    (tmp_path / "b").write_bytes(b"am=1 \xff\n")
    (tmp_path / "c").write_text(GOLDEN)
    truncated, not_text, valid = read_srinterp(tmp_path, base="e")
    assert isinstance(truncated, FormatError)
    assert "b:1: not UTF-8" in str(not_text)
    assert valid.id == "c"


@pytest.mark.parametrize(
    "text", ["VERSION=1.0\n", "N=2 L=1\nI=0\n", "am=-1 a\nlm=-1 a\n", "am=x a\n", "am=-1\n", "a am=-1\n"]
)
def test_does_not_detect_other_formats(tmp_path, text):
    (tmp_path / "u1").write_text(text)
    assert looks_like_srinterp(read_sample(tmp_path / "u1")) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"streams": {}}, "streams: no streams; the format needs at least one feature"),
        ({"streams": {"a b": (1.0,)}}, "a b: the name of a feature cannot contain = or white space"),
        ({"streams": {"a=b": (1.0,)}}, "a=b: the name of a feature cannot contain = or white space"),
        (
            {"hypotheses": (Hypothesis("a=b c"),)},
            "hypothesis 0, text: the first word would be read as a feature",
        ),
        ({"hypotheses": (Hypothesis("a\nb"),)}, "hypothesis 0, text: contains a line break"),
        ({"id": "a/b"}, "id: cannot be a file name"),
    ],
)
def test_writes_nothing_of_a_list_that_a_file_cannot_hold(tmp_path, change, message):
    valid = {"id": "u1", "hypotheses": (Hypothesis("a"),), "streams": {"am": (-1.0,)}}
    with srinterp_writer(tmp_path, base="e") as write, pytest.raises(InvalidList) as caught:
        write(NBestList(**{**valid, **change}))
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []
