"""The choice among formats, and telling them from what is in a file."""

from __future__ import annotations

import gzip
import os
import threading
from dataclasses import replace

import pytest

from rescorer.errors import ConfigError, FormatError
from rescorer.formats import registry
from rescorer.formats.registry import FORMATS, choose, detect
from rescorer.types import Hypothesis, NBestList
from tests.support.format_samples import FILES, FOLDERS, TOLD


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("encode", [str.encode, lambda text: gzip.compress(text.encode())])
def test_a_file_is_told_by_its_beginning(tmp_path, name, encode):
    (tmp_path / "u1").write_bytes(encode("\n" * (name == "jsonl") + FILES[name]))
    found, saw = detect(tmp_path / "u1")
    assert (found, bool(saw)) == (name, True)
    assert all(isinstance(each, NBestList) for each in choose(TOLD.get(found, found)).read(tmp_path / "u1"))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_told_by_its_names_or_its_first_file(tmp_path, name):
    for file, text in FOLDERS[name].items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert detect(tmp_path)[0] == name


def test_every_format_is_tried():
    assert set(FILES) | set(FOLDERS) == set(FORMATS) - {"mikolov"}


@pytest.mark.parametrize(
    ("name", "text", "saw"),
    [
        ("a.jsonl", "{broken\n", "a file name that ends in .jsonl"),
        ("a.jsonl.gz", '{"id": "u1", "hyps": ["a"]}\n', "a file name that ends in .jsonl"),
        (
            "a",
            '{"format": "rescorer-nbest", "version": 1}\n',
            "a header line with the format",
        ),
    ],
)
def test_json_lines_are_told_by_name_and_header_too(tmp_path, name, text, saw):
    (tmp_path / name).write_text(text)
    found, seen = detect(tmp_path / name)
    assert (found, seen.startswith(saw)) == ("jsonl", True)


def test_a_pipe_is_not_looked_at(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(FILES["srilm"]), daemon=True)
    writing.start()
    assert detect("-")[0] == detect(tmp_path / "pipe")[0] == "jsonl"
    assert (tmp_path / "pipe").read_text() == FILES["srilm"]
    writing.join(10)


def test_two_formats_that_fit_are_both_named(tmp_path):
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "acwt").write_text(FILES["srilm"])
    (folder / "words_text").write_text("u1-1 a\n")
    said = r"srilm \(lines of two scores, a count and words\) and kaldi \(a folder with words_text\)"
    with pytest.raises(FormatError, match=f"both: could be {said}; say which"):
        detect(folder)


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"some words\n", "it begins 'some words'"), (b"", "it is empty"), (b"\xff\n", "it has no text")],
)
def test_what_is_not_known_is_refused(tmp_path, data, said):
    (tmp_path / "u1").write_bytes(data)
    with pytest.raises(FormatError, match=f"u1: no format known fits: {said}"):
        detect(tmp_path / "u1")
    with pytest.raises(FormatError, match="No such file"):
        detect(tmp_path / "none")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("sphinx", "no format 'sphinx'; there is jsonl, srilm"),
        ("srilm:missing", "expected srilm:OPTION=VALUE,… with each option once"),
        ("srilm:missing=1,missing=2", "with each option once"),
        ("srilm:missing=much", "srilm: missing='much': expected a finite number"),
        ("nemo:beam=x", "nemo: beam='x': expected a whole number from 1"),
        ("srilm:colour=red", "srilm: no option 'colour' for writing; there is missing, scores"),
        ("kaldi:missing=0", "kaldi: no option 'missing' for writing; there is none"),
        ("srilm:missing=nan", "missing='nan': expected a finite number"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(tmp_path, choice, said):
    with pytest.raises(ConfigError) as caught:
        choose(choice).writer(tmp_path)
    assert said in str(caught.value)


def test_options_of_reading_are_handed_on(tmp_path):
    (tmp_path / "u1").write_text(FILES["htk"])
    assert [each.id for each in choose("htk:depth=2, lmscale=3.5").read(tmp_path / "u1")] == ["u1"]
    with pytest.raises(ConfigError, match="htk: depth='0': expected a whole number from 1"):
        choose("htk:depth=0").read(tmp_path / "u1")


def test_what_a_format_cannot_hold_is_named():
    hypothesis = Hypothesis("a", {"nwords": 1, "note": 2})
    nbest = NBestList("u1", (hypothesis,), {"lm": (-1.0,), "x": (0.0,)}, "c", "r", "g", {"f": 1})
    assert FORMATS["jsonl"].find_losses(nbest) == set()
    assert "id" in FORMATS["nemo"].find_losses(nbest)
    assert FORMATS["srilm"].find_losses(nbest) == {
        "context", "reference", "group", "fields", "stream x", "field note of hypotheses"
    }  # fmt: skip


def test_formats_of_one_hypothesis_lose_the_others():
    times = {"words": [{"word": "a", "start_s": 0.5, "duration_s": 0.25}]}
    nbest = NBestList("u1", (Hypothesis("a", times), Hypothesis("b")))
    assert FORMATS["trn"].find_losses(nbest) == {"hypotheses after the first", "field words of hypotheses"}
    assert FORMATS["ctm"].find_losses(nbest) == {"hypotheses after the first"}
    confident = {"words": [times["words"][0] | {"confidence": 0.5}]}
    nbest = NBestList("u1", (Hypothesis("a", confident),), fields={"file": "u1", "note": 1})
    assert FORMATS["ctm"].find_losses(nbest) == {"fields"}
    assert FORMATS["nbestlist2"].find_losses(nbest) == {"fields", "confidence of words"}
    assert FORMATS["stm"].find_losses(replace(nbest, fields={"file": "u1"})) == {
        "id",
        "field words of hypotheses",
    }


def test_what_formats_can_hold_is_said():
    assert FORMATS["jsonl"].describe_contents() == "everything"
    assert FORMATS["nemo"].describe_contents() == "texts, first_pass"
    assert FORMATS["nbestlist2"].describe_contents() == "ids, texts, acoustic, first_pass, lm, times of words"
    assert all(each.describe_contents() for each in FORMATS.values())


def test_groups_come_from_ids_where_lists_have_none():
    lists = [NBestList("s1-u1", (Hypothesis("a"),)), NBestList("s1-u2", (Hypothesis("a"),), group="own")]
    fault = FormatError("bad")
    found = list(registry.assign_groups(iter([*lists, fault]), lambda list_id: list_id[:2]))
    assert [each.group for each in found[:2]] == ["s1", "own"]
    assert found[2] is fault


TIMED = (("a", 0.5), ("b", 0.75))


def test_what_is_written_is_told_and_read_again(tmp_path):
    scores = dict.fromkeys(("acoustic", "lm", "graph", "first_pass"), (-1.0, -2.0))
    times = {"words": [{"word": word, "start_s": start, "duration_s": 0.25} for word, start in TIMED]}
    nbest = NBestList(
        "u1", (Hypothesis("a b", times), Hypothesis("b", {"words": times["words"][1:]})), scores
    )
    place = {"file": "u1", "channel": "1", "start_s": 0.0, "end_s": 1.0}
    nbest = replace(nbest, group="ann", fields=place)
    for name in FORMATS:
        choice = choose(TOLD.get(name, name))
        with choice.writer(tmp_path / name) as write:
            write(nbest)
        assert name == "mikolov" or detect(tmp_path / name)[0] == name
        (found,) = choice.read(tmp_path / name)
        texts = ["a b"] if FORMATS[name].one_best else ["a b", "b"]
        assert [hypothesis.text for hypothesis in found.hypotheses] == texts
