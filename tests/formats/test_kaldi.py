"""Kaldi archives: a golden folder, round trips, and archives that do not match."""

from __future__ import annotations

import gzip
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.kaldi import kaldi_writer, read_kaldi
from rescorer.formats.registry import FORMATS, detect
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import lists_match, nbest_lists, several, write_truncated_gzip

GOLDEN = {
    "words_text": "utt-1-1 LAST MONTH\nutt-1-2 LAST MONTHS\nutt2-1 \nutt2-2 GOODS\n",
    "acwt": "utt-1-1 -5402.7\nutt-1-2 -5400.5\nutt2-1 12\nutt2-2 13.5\n",
    "lmwt.lmonly": "utt-1-1 12.31\nutt-1-2 13\nutt2-1 1\nutt2-2 2e1\n",
}


def write_folder(path: Path, **changes: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in (GOLDEN | changes).items():
        (path / name).write_text(text)
    return path


def test_converts_costs_and_groups_keys_into_lists(tmp_path):
    first, second = read_kaldi(write_folder(tmp_path))
    assert first == NBestList(
        "utt-1",
        (Hypothesis("LAST MONTH"), Hypothesis("LAST MONTHS")),
        {"acoustic": (5402.7, 5400.5), "lm": (-12.31, -13.0)},
    )
    assert second.id == "utt2"
    assert [hypothesis.text for hypothesis in second.hypotheses] == ["", "GOODS"]


def test_other_cost_archives_become_streams_of_the_same_name(tmp_path):
    lists = list(read_kaldi(write_folder(tmp_path / "a", **{"lmwt.rnn": GOLDEN["lmwt.lmonly"]})))
    assert [nbest.streams["lmwt.rnn"] for nbest in lists] == [nbest.streams["lm"] for nbest in lists]
    assert not [part for part in FORMATS["kaldi"].find_losses(lists[0]) if part.startswith("stream")]
    with kaldi_writer(tmp_path / "b") as write:
        write(lists[0])
        for name in ("lmwt.lmonly", "lmwt.a b", "lmwt.rnn.gz"):
            with pytest.raises(InvalidList, match=f"{name}: cannot name an archive"):
                write(NBestList("u", (Hypothesis("a"),), {name: (-1.0,)}))
    assert list(read_kaldi(tmp_path / "b")) == lists[:1]


def test_reads_gzip_carriage_returns_and_byte_order_marks(tmp_path):
    plain, changed = write_folder(tmp_path / "plain"), tmp_path / "changed"
    changed.mkdir()
    for name, text in GOLDEN.items():
        (changed / f"{name}.gz").write_bytes(gzip.compress(("\ufeff" + text.replace("\n", "\r\n")).encode()))
    assert list(read_kaldi(changed)) == list(read_kaldi(plain))


@given(several(nbest_lists(["acoustic", "graph", "lm"])))
def test_round_trip(lists):
    with tempfile.TemporaryDirectory() as folder:
        with kaldi_writer(folder) as write:
            for nbest in lists:
                write(nbest)
        assert lists_match(list(read_kaldi(folder)), lists, relative=0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"acwt": GOLDEN["acwt"].replace("-5400.5", "nan")}, "hypothesis 1, acoustic: the score is nan"),
        ({"acwt": GOLDEN["acwt"].replace("-5400.5", "tensor(-12.9)")}, "'tensor(-12.9)' is not a number"),
        ({"acwt": GOLDEN["acwt"].replace("-5400.5", "")}, "acoustic: '' is not a number"),
        ({"lmwt.lmonly": GOLDEN["lmwt.lmonly"].replace("13", "13 14")}, "lm: '13 14' is not a number"),
    ],
)
def test_rejects_only_the_list_with_a_bad_score(tmp_path, changes, message):
    error, valid = read_kaldi(write_folder(tmp_path, **changes))
    assert f"{tmp_path / next(iter(changes))}:2, list 'utt-1', " in str(error)
    assert message in str(error)
    assert valid.id == "utt2"


def test_rejects_keys_without_rank_and_duplicate_ids(tmp_path):
    texts = {
        name: text.replace("utt2-1", "utt2").replace("utt2-2", "utt-1-1") for name, text in GOLDEN.items()
    }
    valid, no_rank, duplicate = read_kaldi(write_folder(tmp_path, **texts))
    assert valid.id == "utt-1"
    assert "words_text:3: expected a key like UTTERANCE-N, got 'utt2'" in str(no_rank)
    assert "words_text:4, list 'utt-1': duplicate id" in str(duplicate)


def test_stops_at_archives_with_different_keys(tmp_path):
    other = GOLDEN["acwt"].replace("utt2-1", "utt3-1")
    valid, error = read_kaldi(write_folder(tmp_path, acwt=other))
    assert valid.id == "utt-1"
    assert "acwt:3: expected the key 'utt2-1' as in another archive, got 'utt3-1'" in str(error)
    valid, error = read_kaldi(write_folder(tmp_path, acwt=GOLDEN["acwt"][: GOLDEN["acwt"].index("utt2")]))
    expected = "expected the key 'utt2-1' as in another archive, got the end of the file"
    assert f"{tmp_path / 'acwt'}: {expected}" in str(error)


def test_yields_errors_for_damaged_archives(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "acwt").unlink()
    write_truncated_gzip(tmp_path / "acwt.gz", GOLDEN["acwt"])
    *_, error = read_kaldi(tmp_path)
    assert isinstance(error, FormatError)
    (tmp_path / "acwt.gz").unlink()
    (tmp_path / "acwt").write_bytes(GOLDEN["acwt"].encode().replace(b"-5400.5", b"\xff"))
    error, valid = read_kaldi(tmp_path)
    assert "acwt:2: not UTF-8" in str(error)
    assert valid.id == "utt2"
    write_folder(tmp_path)
    (tmp_path / "words_text").write_bytes(GOLDEN["words_text"].encode().replace(b"MONTHS", b"\xff"))
    error, valid = read_kaldi(tmp_path)  # the key of the unreadable line comes from the other archives
    assert "words_text:2: not UTF-8" in str(error)
    assert valid.id == "utt2"


def test_rejects_other_sources(tmp_path):
    for source in (tmp_path, io.BytesIO(b""), tmp_path / "none"):
        with pytest.raises(FormatError, match="expected a folder with words_text, acwt and lmwt"):
            list(read_kaldi(source))


def test_folder_without_words_says_how_they_are_made(tmp_path):
    """Kaldi's nbest-to-linear writes ids into a file of any name; scripts map them to words afterwards."""
    write_folder(tmp_path)
    (tmp_path / "words_text").rename(tmp_path / "words")
    assert detect(tmp_path)[0] == "kaldi"
    with pytest.raises(FormatError, match="words_text has words, not ids, as utils/int2sym"):
        list(read_kaldi(tmp_path))


def test_writer_rejects_lists_that_archives_cannot_hold(tmp_path):
    with kaldi_writer(tmp_path) as write:
        write(NBestList("u1", (Hypothesis("a"),), {"lm": (-1.0,), "other": (-1.0,)}))
        with pytest.raises(InvalidList, match="expected a non-empty id without white space"):
            write(NBestList("u 2", (Hypothesis("a"),), {"lm": (-1.0,)}))
        with pytest.raises(InvalidList, match="lm: missing stream; earlier lists have it"):
            write(NBestList("u2", (Hypothesis("a"),)))
        with pytest.raises(InvalidList, match="acoustic: earlier lists do not have this stream"):
            write(NBestList("u2", (Hypothesis("a"),), {"lm": (-1.0,), "acoustic": (-1.0,)}))
    assert (tmp_path / "words_text").read_text() == "u1-1 a\n"
    assert not (tmp_path / "acwt").exists()


def test_hypotheses_are_in_the_order_of_their_numbers(tmp_path):
    keys = ["u1-1", "u1-10", "u1-2", "u10-1", "u10-2"]
    (tmp_path / "words_text").write_text("".join(f"{key} text of {key}\n" for key in keys))
    (tmp_path / "acwt").write_text("".join(f"{key} {key.split('-')[1]}\n" for key in keys))
    first, second = read_kaldi(tmp_path)
    assert [hypothesis.text for hypothesis in first.hypotheses] == [f"text of u1-{n}" for n in (1, 2, 10)]
    assert first.streams["acoustic"] == (-1.0, -2.0, -10.0)
    assert (second.id, len(second.hypotheses)) == ("u10", 2)
