"""SRILM score folders: golden files, round trips, and folders that do not match their lists."""

from __future__ import annotations

import gzip
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.registry import choose
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import lists_match, nbest_lists, several, write_truncated_gzip

LN_10 = math.log(10)
LISTS = {"u1": "-10 -2 2 yeah well\n-11 -3 1 yeah\n", "u2": "-9 -1 0\n"}
RNN = {"u1": "-1.5\n-2\n", "u2": "-0.5\n"}


def write_folders(path: Path, **scores: dict[str, str | bytes]) -> str:
    """Write folders of lists and scores; return the path of the lists."""
    for name, files in {"lists": LISTS, **scores}.items():
        (path / name).mkdir()
        for file, text in files.items():
            (path / name / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path / "lists")


def test_reads_scores_in_log10_or_declared_units(tmp_path):
    durations = {"u1.gz": gzip.compress(b"\xef\xbb\xbf3\r\n4\r\n"), "u2": "5\n\n"}
    lists = write_folders(tmp_path, rnn=RNN, durations=durations)
    choice = choose(f"srilm:scores=rnn={tmp_path}/rnn; duration/e/cost={tmp_path}/durations")
    first, second = choice.read(lists)
    assert list(first.streams) == ["acoustic", "lm", "rnn", "duration"]
    assert first.streams["rnn"] == pytest.approx((-1.5 * LN_10, -2 * LN_10))
    assert first.streams["duration"] == (-3.0, -4.0)
    assert second.streams["duration"] == (-5.0,)
    assert first.hypotheses[1] == Hypothesis("yeah", {"nwords": 1})


def test_reads_scores_of_nbestlist1(tmp_path):
    lists = write_folders(tmp_path, rnn=RNN, combined={"u2": "NBestList1.0\n(-12) a\n"})
    (nbest,) = choose(f"nbestlist1:scores=rnn/2={tmp_path}/rnn").read(Path(lists).parent / "combined")
    assert nbest.streams["rnn"] == pytest.approx((-0.5 * math.log(2),))
    assert list(nbest.streams) == ["first_pass", "rnn"]


@given(several(nbest_lists(["acoustic", "lm", "rnn", "b"], fields=lambda text: {"nwords": len(text)})))
def test_round_trip(lists):
    with tempfile.TemporaryDirectory() as folder:
        choice = choose(f"srilm:scores=rnn/e={folder}/rnn;b/2/cost={folder}/b")
        with choice.writer(f"{folder}/lists") as write:
            for nbest in lists:
                write(nbest)
                assert choice.find_losses(nbest) == set()
        assert lists_match(list(choice.read(f"{folder}/lists")), lists)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ("-1.5\n", "rnn/u1: expected 2 numbers, one per hypothesis of the list, got 1"),
        ("1\n2\n3\n", "rnn/u1: expected 2 numbers, one per hypothesis of the list, got 3"),
        ("-1\nnan\n", "rnn/u1:2: 'nan': expected one finite number"),
        ("-1\n1_0\n", "rnn/u1:2: '1_0': expected one finite number"),
        ("-1 -2\n-2\n", "rnn/u1:1: '-1 -2': expected one finite number"),
        ("tensor(-12.9)\n-2\n", "rnn/u1:1: 'tensor(-12.9)': expected one finite number"),
        (b"\xff\n-2\n", "rnn/u1:1: not UTF-8"),
        ("1e308\n-2\n", "hypothesis 0, rnn: 1e+308 is too large for a float64 in nats"),
    ],
)
def test_rejects_only_the_list_with_bad_scores(tmp_path, scores, message):
    lists = write_folders(tmp_path, rnn=RNN | {"u1": scores})
    error, valid = choose(f"srilm:scores=rnn={tmp_path}/rnn").read(lists)
    assert message in str(error)
    assert isinstance(valid, NBestList)


def test_rejects_missing_and_truncated_files_and_folders(tmp_path):
    lists = write_folders(tmp_path, rnn={"u2": RNN["u2"]})
    choice = choose(f"srilm:scores=rnn={tmp_path}/rnn")
    missing, _ = choice.read(lists)
    assert "rnn: no scores for list 'u1'; expected a file of that name" in str(missing)
    write_truncated_gzip(tmp_path / "rnn" / "u1.gz", RNN["u1"])
    assert isinstance(next(choice.read(lists)), FormatError)
    with pytest.raises(FormatError, match="none: the folder of scores does not exist"):
        list(choose(f"srilm:scores=rnn={tmp_path}/none").read(lists))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("rnn", r"expected NAME\[/BASE\[/SIGN\]\]=DIR"),
        ("rnn=", "expected NAME"),
        ("rnn=a;rnn=b", "with each name once"),
        ("rnn/e/cost/x=a", "expected NAME"),
        ("rnn/ln=a", "base is 'ln'; expected one of e, 2, 10"),
        ("rnn/e/up=a", "sign is 'up'; expected one of log_prob, cost"),
    ],
)
def test_rejects_invalid_option(tmp_path, option, message):
    with pytest.raises(ConfigError, match=message):
        choose(f"srilm:scores={option}").read(tmp_path)


def test_rejects_stream_name_used_by_the_lists(tmp_path):
    lists = write_folders(tmp_path, rnn=RNN)
    with pytest.raises(ConfigError, match="already has a stream lm; use another name in scores="):
        list(choose(f"srilm:scores=lm={tmp_path}/rnn").read(lists))


def test_writes_nothing_of_a_list_that_does_not_fit(tmp_path):
    choice = choose(f"srilm:scores=rnn={tmp_path}/rnn")
    streams = {"acoustic": (-1.0,), "lm": (-1.0,)}
    with choice.writer(tmp_path / "lists") as write:
        with pytest.raises(InvalidList, match="rnn: the format needs this stream"):
            write(NBestList("u1", (Hypothesis("a"),), streams))
        (tmp_path / "rnn" / "u1").write_text("from an earlier run\n")
        with pytest.raises(InvalidList, match="exists"):
            write(NBestList("u1", (Hypothesis("a"),), {**streams, "rnn": (-1.0,)}))
    assert list((tmp_path / "lists").iterdir()) == []
    assert (tmp_path / "rnn" / "u1").read_text() == "from an earlier run\n"
