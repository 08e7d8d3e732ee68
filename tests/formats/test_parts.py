"""Folders of jobs and of files are read as one input, in the order of their numbers."""

from __future__ import annotations

import gzip

import pytest

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.inputs import expand_globs, find_parts, read_parts
from rescorer.formats.io.folders import name_entries
from rescorer.formats.registry import choose
from rescorer.types import NBestList
from tests.support.list_lines import record, write


def make_kaldi(folder, *ids):
    folder.mkdir(parents=True)
    write(folder / "words_text", *(f"{key}-{rank} a {rank}" for key in ids for rank in (1, 2)))
    write(folder / "acwt", *(f"{key}-{rank} {rank}" for key in ids for rank in (1, 2)))


def make_espnet(folder, *ids):
    (folder / "1best_recog").mkdir(parents=True)
    write(folder / "1best_recog" / "text", *(f"{key} a b" for key in ids))
    write(folder / "1best_recog" / "score", *(f"{key} tensor(-1.5)" for key in ids))


def make_srilm(folder, *ids):
    folder.mkdir(parents=True)
    for key in ids:
        write(folder / key, "-1 -2 1 a", "-3 -4 1 b")


def read(*sources, choice=""):
    inputs = [find_parts(str(source), choice) for source in sources]
    return list(read_parts(inputs, lambda path, choice: choose(choice).read(path)))


def ids(items):
    return [item.id if isinstance(item, NBestList) else str(item) for item in items]


@pytest.mark.parametrize(
    ("make", "name", "format_"),
    [
        (make_kaldi, "nbest.{}", "kaldi"),
        (make_kaldi, "{}", "kaldi"),
        (make_espnet, "output.{}", "espnet2"),
        (make_srilm, "lists{:02}_of_11", "srilm"),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_reads_the_folders_of_jobs_in_numeric_order(tmp_path, make, name, format_, given):
    for number in range(1, 12):
        make(tmp_path / name.format(number), f"u{number}")
        write(tmp_path / f"keys.{number}.scp", f"u{number} audio.wav")
    write(tmp_path / "asr_inference.1.log", "# started", "ended")
    (tmp_path / "log").mkdir()
    parts = find_parts(str(tmp_path), format_ if given else "")
    assert (parts.choice, len(parts.paths), parts.missing) == (format_, 11, ())
    assert ids(read(tmp_path)) == [f"u{number}" for number in range(1, 12)]


def test_a_folder_of_one_list_file_is_itself(tmp_path):
    make_kaldi(tmp_path / "nbest.1", "u1")
    make_kaldi(tmp_path / "nbest.1" / "old.1", "u2")
    assert find_parts(str(tmp_path / "nbest.1")).paths == (str(tmp_path / "nbest.1"),)


def test_names_missing_jobs_and_reports_empty_ones(tmp_path):
    for number in (2, 3, 5):
        make_espnet(tmp_path / f"output.{number}", f"u{number}")
    (tmp_path / "output.6").mkdir()
    assert find_parts(str(tmp_path)).missing == ("output.1", "output.4")
    *found, error = ids(read(tmp_path))
    assert found == ["u2", "u3", "u5"]
    assert "output.6: expected the folders 1best_recog" in error


def test_reads_files_of_one_format_in_numeric_order(tmp_path):
    for number in (1, 2, 10):
        content = f"{record(f'u{number}', 'a')}\n".encode()
        (tmp_path / f"a{number}.jsonl").write_bytes(gzip.compress(content) if number == 2 else content)
    (tmp_path / "a3.jsonl").touch()
    (tmp_path / ".a4.jsonl.partial").write_text("{")
    assert ids(read(tmp_path)) == ["u1", "u2", "u10"]
    write(tmp_path / "README.md", "hello")
    with pytest.raises(FormatError, match=r"it has README.md and a1.jsonl … a10.jsonl.*of the format jsonl"):
        find_parts(str(tmp_path))


def test_a_second_list_with_an_id_is_an_error_that_names_both_places(tmp_path):
    make_kaldi(tmp_path / "nbest.1", "u1", "u2")
    make_kaldi(tmp_path / "nbest.2", "u2", "u3")
    first, second, error, third = read(tmp_path)
    assert ids([first, second, third]) == ["u1", "u2", "u3"]
    assert isinstance(error, InvalidList)
    assert str(error).startswith(f"{tmp_path}/nbest.2, list 'u2': duplicate id; ")
    assert f"{tmp_path}/nbest.1" in str(error)
    lists = write(tmp_path / "a.jsonl", record("u3", "a"), record("u4", "a"))
    assert ids(read(tmp_path / "nbest.2", lists))[::3] == ["u2", "u4"]


def test_numbers_of_lines_are_no_ids_of_several_files(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, "yes\t-1", "no\t-2")
    first, error = read(tmp_path / "a", tmp_path / "b", choice="nemo:beam=2")
    assert first.id == "1"
    assert "The format has no ids, so each file counts from 1" in str(error)


def test_says_what_is_in_a_folder_without_lists_of_its_own(tmp_path):
    for number in range(1, 5):
        make_espnet(tmp_path / "decode" / "logdir" / f"output.{number}", f"u{number}")
    write(tmp_path / "decode" / "text", "u1 a b")
    message = r"the folder has logdir/ and text; there are lists in .*decode/logdir: give that"
    with pytest.raises(FormatError, match=message):
        find_parts(str(tmp_path / "decode"))
    make_kaldi(tmp_path / "decode" / "logdir" / "nbest.1", "u1")
    message = r"has lists in nbest.1 and in output.1 … output.4: which are meant\?"
    with pytest.raises(FormatError, match=message):
        find_parts(str(tmp_path / "decode" / "logdir"))
    assert find_parts(str(tmp_path / "decode" / "logdir"), "kaldi").paths[0].endswith("nbest.1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="is an empty folder"):
        find_parts(str(tmp_path / "empty"))


def test_rejects_jobs_of_different_formats_and_lists_on_two_levels(tmp_path):
    make_kaldi(tmp_path / "a" / "job1", "u1")
    make_espnet(tmp_path / "a" / "job2", "u2")
    with pytest.raises(FormatError, match="different formats: job1 has kaldi, job2 has espnet2"):
        find_parts(str(tmp_path / "a"))
    make_srilm(tmp_path / "b", "u1")
    make_srilm(tmp_path / "b" / "job1", "u2")
    with pytest.raises(FormatError, match="has lists in job1 and in files of its own"):
        find_parts(str(tmp_path / "b"))


def test_a_folder_whose_first_file_is_silence_is_detected_from_others(tmp_path):
    write(tmp_path / "u1", "am=-1.5 lm=-2")
    write(tmp_path / "u2", "am=-1.5 lm=-2 a b")
    assert find_parts(str(tmp_path)).choice == "srinterp"


def test_names_entries_by_their_numbers(tmp_path):
    for name in ("output.10", "output.9", "text"):
        (tmp_path / name).touch()
    (tmp_path / "log").mkdir()
    assert name_entries(tmp_path) == "log/, output.9 … output.10 and text"


def test_expands_patterns_in_natural_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 10):
        (tmp_path / f"nbest.{number}").touch()
    assert expand_globs(["nbest.*"]) == ["nbest.1", "nbest.2", "nbest.10"]
    assert expand_globs(["none.*", "-"]) == ["none.*", "-"]
    with pytest.raises(ConfigError, match=r"nbest.2: this input is given twice"):
        expand_globs(["nbest.2", "nbest.*"])
