"""Kaldi's archives: a golden folder, round trips, and archives that do not go together."""

from __future__ import annotations

import gzip
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.catalogue import FORMATS
from rescorer.formats.nbest.kaldi import read_lists, writer
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import lists_match, nbest_lists, several, write_truncated_gzip

GOLDEN = {
    "words_text": "utt-1-1 LAST MONTH\nutt-1-2 LAST MONTHS\nutt2-1 \nutt2-2 GOODS\n",
    "acwt": "utt-1-1 -5402.7\nutt-1-2 -5400.5\nutt2-1 12\nutt2-2 13.5\n",
    "lmwt.lmonly": "utt-1-1 12.31\nutt-1-2 13\nutt2-1 1\nutt2-2 2e1\n",
}


def folder_of(path: Path, **changes: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in (GOLDEN | changes).items():
        (path / name).write_text(text)
    return path


def test_costs_become_log_probabilities_and_keys_lists(tmp_path):
    first, second = read_lists(folder_of(tmp_path))
    assert first == NBestList(
        "utt-1",
        (Hypothesis("LAST MONTH"), Hypothesis("LAST MONTHS")),
        {"acoustic": (5402.7, 5400.5), "lm": (-12.31, -13.0)},
    )
    assert second.id == "utt2"
    assert [each.text for each in second.hypotheses] == ["", "GOODS"]


def test_further_archives_of_costs_are_streams_of_their_names(tmp_path):
    lists = list(read_lists(folder_of(tmp_path / "a", **{"lmwt.rnn": GOLDEN["lmwt.lmonly"]})))
    assert [each.streams["lmwt.rnn"] for each in lists] == [each.streams["lm"] for each in lists]
    assert not [part for part in FORMATS["kaldi"].lost(lists[0]) if part.startswith("stream")]
    with writer(tmp_path / "b") as put:
        put(lists[0])
        for name in ("lmwt.lmonly", "lmwt.a b", "lmwt.rnn.gz"):
            with pytest.raises(InvalidList, match=f"{name}: would be an archive of another"):
                put(NBestList("u", (Hypothesis("a"),), {name: (-1.0,)}))
    assert list(read_lists(tmp_path / "b")) == lists[:1]


def test_gzip_carriage_returns_and_byte_order_marks_do_no_harm(tmp_path):
    plain, changed = folder_of(tmp_path / "plain"), tmp_path / "changed"
    changed.mkdir()
    for name, text in GOLDEN.items():
        (changed / f"{name}.gz").write_bytes(gzip.compress(("\ufeff" + text.replace("\n", "\r\n")).encode()))
    assert list(read_lists(changed)) == list(read_lists(plain))


@given(several(nbest_lists(["acoustic", "graph", "lm"])))
def test_what_is_written_is_read_back(lists):
    with tempfile.TemporaryDirectory() as folder:
        with writer(folder) as put:
            for nbest in lists:
                put(nbest)
        assert lists_match(list(read_lists(folder)), lists, relative=0.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"acwt": GOLDEN["acwt"].replace("-5400.5", "nan")}, "hypothesis 1, acoustic: the score is nan"),
        ({"acwt": GOLDEN["acwt"].replace("-5400.5", "tensor(-12.9)")}, "'tensor(-12.9)' is not a number"),
        ({"acwt": GOLDEN["acwt"].replace("-5400.5", "")}, "acoustic: '' is not a number"),
        ({"lmwt.lmonly": GOLDEN["lmwt.lmonly"].replace("13", "13 14")}, "lm: '13 14' is not a number"),
    ],
)
def test_a_bad_score_is_a_fault_of_its_list_alone(tmp_path, changes, said):
    fault, good = read_lists(folder_of(tmp_path, **changes))
    assert f"{tmp_path / next(iter(changes))}:2, list 'utt-1', " in str(fault)
    assert said in str(fault)
    assert good.id == "utt2"


def test_keys_without_a_number_and_ids_met_before_are_told(tmp_path):
    texts = {
        name: text.replace("utt2-1", "utt2").replace("utt2-2", "utt-1-1") for name, text in GOLDEN.items()
    }
    good, no_key, again = read_lists(folder_of(tmp_path, **texts))
    assert good.id == "utt-1"
    assert "words_text:3: expected the key UTTERANCE-N, not 'utt2'" in str(no_key)
    assert "words_text:4, list 'utt-1': is here a second time" in str(again)


def test_archives_that_do_not_go_together_end_the_reading(tmp_path):
    other = GOLDEN["acwt"].replace("utt2-1", "utt3-1")
    good, fault = read_lists(folder_of(tmp_path, acwt=other))
    assert good.id == "utt-1"
    assert "acwt:3: the key 'utt3-1', where another archive has 'utt2-1'" in str(fault)
    good, fault = read_lists(folder_of(tmp_path, acwt=GOLDEN["acwt"][: GOLDEN["acwt"].index("utt2")]))
    assert f"{tmp_path / 'acwt'}: the end, where another archive has 'utt2-1'" in str(fault)


def test_damaged_archives_are_told(tmp_path):
    folder_of(tmp_path)
    (tmp_path / "acwt").unlink()
    write_truncated_gzip(tmp_path / "acwt.gz", GOLDEN["acwt"])
    *_, fault = read_lists(tmp_path)
    assert isinstance(fault, FormatError)
    (tmp_path / "acwt.gz").unlink()
    (tmp_path / "acwt").write_bytes(GOLDEN["acwt"].encode().replace(b"-5400.5", b"\xff"))
    fault, good = read_lists(tmp_path)
    assert "acwt:2: not UTF-8" in str(fault)
    assert good.id == "utt2"
    folder_of(tmp_path)
    (tmp_path / "words_text").write_bytes(GOLDEN["words_text"].encode().replace(b"MONTHS", b"\xff"))
    fault, good = read_lists(tmp_path)  # the other archives tell whose line it was
    assert "words_text:2: not UTF-8" in str(fault)
    assert good.id == "utt2"


def test_anything_else_is_refused(tmp_path):
    for source in (tmp_path, io.BytesIO(b""), tmp_path / "none"):
        with pytest.raises(FormatError, match="expected a folder with words_text, acwt and lmwt"):
            list(read_lists(source))


def test_what_an_archive_cannot_hold_is_refused(tmp_path):
    with writer(tmp_path) as put:
        put(NBestList("u1", (Hypothesis("a"),), {"lm": (-1.0,), "other": (-1.0,)}))
        with pytest.raises(InvalidList, match="a line's key cannot hold white space"):
            put(NBestList("u 2", (Hypothesis("a"),), {"lm": (-1.0,)}))
        with pytest.raises(InvalidList, match="lm: no such stream, though earlier lists have one"):
            put(NBestList("u2", (Hypothesis("a"),)))
        with pytest.raises(InvalidList, match="acoustic: earlier lists have no such stream"):
            put(NBestList("u2", (Hypothesis("a"),), {"lm": (-1.0,), "acoustic": (-1.0,)}))
    assert (tmp_path / "words_text").read_text() == "u1-1 a\n"
    assert not (tmp_path / "acwt").exists()
