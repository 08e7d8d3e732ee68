"""ESPnet 2 folders: a golden one, round trips, and files that do not match."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.espnet import espnet2_writer, read_espnet2
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import nbest_lists, several, write_truncated_gzip

GOLDEN = {
    "1best_recog/text": "u1 HELLO YOU\nu2 \nu3 YES\n",
    "1best_recog/score": "u1 tensor(-12.9)\nu2 -1.5\nu3 tensor(-3., device='cuda:0')\n",
    "1best_recog/token": "u1 ▁HE LLO ▁YOU\nu2 \nu3 ▁YES\n",
    "2best_recog/text": "u1 HELLO\nu3 YET\n",
    "2best_recog/score": "u1 -13\nu3 -4\n",
    "10best_recog.old/text": "left alone",
}


def write_folders(path: Path, changes: dict[str, str | None] | None = None) -> Path:
    for name, text in (GOLDEN | (changes or {})).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (path / name).write_text(text)
    return path


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_reads_folders_in_parallel(tmp_path, ends):
    files = {name: text.replace("\n", ends) for name, text in GOLDEN.items()}
    first, second, third = read_espnet2(write_folders(tmp_path, files))
    assert first.id == "u1"
    assert first.hypotheses == (Hypothesis("HELLO YOU", {"token": "▁HE LLO ▁YOU"}), Hypothesis("HELLO"))
    assert first.streams == {"first_pass": (-12.9, -13.0)}
    assert second == NBestList("u2", (Hypothesis("", {"token": ""}),), {"first_pass": (-1.5,)})
    assert [hypothesis.text for hypothesis in third.hypotheses] == ["YES", "YET"]


@given(several(nbest_lists(["first_pass"])) | several(nbest_lists()))
def test_round_trip(lists):
    with tempfile.TemporaryDirectory() as folder:
        with espnet2_writer(folder) as write:
            for nbest in lists:
                write(nbest)
        assert list(read_espnet2(folder)) == lists


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("nan", "the score is nan"),
        ("tensor(inf)", "the score is inf"),
        ("tensor([1, 2])", "is not a number"),
        ("", "'' is not a number"),
    ],
)
def test_rejects_only_the_list_with_a_bad_score(tmp_path, score, message):
    error, *valid = read_espnet2(write_folders(tmp_path, {"2best_recog/score": f"u1 {score}\nu3 -4\n"}))
    assert isinstance(error, InvalidList)
    assert f"{tmp_path / '2best_recog/score'}:1, list 'u1', hypothesis 1, first_pass" in str(error)
    assert message in str(error)
    assert [nbest.id for nbest in valid] == ["u2", "u3"]


def test_yields_errors_for_missing_files_and_scores(tmp_path):
    *valid, error = read_espnet2(write_folders(tmp_path, {"2best_recog/score": "u1 -13\n"}))
    assert [nbest.id for nbest in valid] == ["u1", "u2"]
    assert "2best_recog:2: text, score do not have the same keys in the same order" in str(error)
    (tmp_path / "2best_recog/score").unlink()
    error, second, _ = read_espnet2(tmp_path)
    assert "list 'u1', hypothesis 1, first_pass: no score, though other hypotheses" in str(error)
    assert second.id == "u2"
    (tmp_path / "2best_recog/text").unlink()
    with pytest.raises(FormatError, match=r"2best_recog/text: cannot be read: No such file"):
        list(read_espnet2(tmp_path))


def test_stops_at_files_of_one_folder_with_different_keys(tmp_path):
    *valid, error = read_espnet2(write_folders(tmp_path, {"1best_recog/score": "u1 -1\nu3 -1\nu2 -2\n"}))
    assert [nbest.id for nbest in valid] == ["u1"]
    assert "1best_recog:2: text, score, token do not have the same keys in the same order" in str(error)


def test_yields_error_for_folders_in_different_order(tmp_path):
    changes = {"2best_recog/text": "u3 YET\nu1 HELLO\n", "2best_recog/score": "u3 -4\nu1 -13\n"}
    *lists, error = read_espnet2(write_folders(tmp_path, changes))
    assert "2best_recog/text:2: 'u1' is missing from 1best_recog, or the order differs" in str(error)
    assert [len(nbest.hypotheses) for nbest in lists] == [1, 1, 2]


def test_yields_error_for_duplicate_id(tmp_path):
    files = {name: text.replace("u2", "u1") for name, text in GOLDEN.items()}
    first, duplicate, _ = read_espnet2(write_folders(tmp_path, files))
    assert first.id == "u1"
    assert "1best_recog/text:2, list 'u1': duplicate id" in str(duplicate)


def test_yields_errors_for_damaged_files(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "2best_recog/text").write_bytes(b"u1 \xff\nu3 YET\n")
    error, *valid = read_espnet2(tmp_path)
    assert "2best_recog/text:1: not UTF-8" in str(error)
    assert [nbest.id for nbest in valid] == ["u2", "u3"]
    write_truncated_gzip(tmp_path / "1best_recog/text", GOLDEN["1best_recog/text"])
    assert isinstance(list(read_espnet2(tmp_path))[-1], FormatError)


def test_rejects_other_sources(tmp_path):
    (tmp_path / "2best_recog").mkdir()
    for source in (tmp_path, io.BytesIO(b""), tmp_path / "none"):
        with pytest.raises(FormatError, match="expected the folders 1best_recog, 2best_recog"):
            list(read_espnet2(source))


def test_writer_rejects_lists_that_the_folders_cannot_hold(tmp_path):
    with espnet2_writer(tmp_path) as write:
        write(NBestList("u1", (Hypothesis("a"),), {"first_pass": (-1.0,)}))
        with pytest.raises(InvalidList, match="expected a non-empty id without white space"):
            write(NBestList("u 2", (Hypothesis("a"),), {"first_pass": (-1.0,)}))
        with pytest.raises(InvalidList, match="first_pass: some lists have this stream and others do not"):
            write(NBestList("u2", (Hypothesis("a"),)))
        with pytest.raises(InvalidList, match="contains a line break"):
            write(NBestList("u2", (Hypothesis("a\nb"),), {"first_pass": (-1.0,)}))
    assert (tmp_path / "1best_recog/text").read_text() == "u1 a\n"
