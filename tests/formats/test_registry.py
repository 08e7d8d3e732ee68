"""Choosing a format by name, and detecting it from the content of a file."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError
from rescorer.formats import registry
from rescorer.formats.io.folders import parse_beginnings
from rescorer.formats.registry import FORMATS, choose, detect
from rescorer.types import Hypothesis, NBestList
from tests.support.format_samples import CHOICES_WITH_OPTIONS, FILES, FOLDERS

UNDETECTED = {"mikolov", "lines", "paragraphs"}
"""Formats that any text could have."""


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("encode", [str.encode, lambda text: gzip.compress(text.encode())])
def test_detects_format_from_content(tmp_path, name, encode):
    (tmp_path / "u1").write_bytes(encode("\n" * (name == "jsonl") + FILES[name]))
    detected, evidence = detect(tmp_path / "u1")
    assert (detected, bool(evidence)) == (name, True)
    lists = choose(CHOICES_WITH_OPTIONS.get(detected, detected)).read(tmp_path / "u1")
    assert all(isinstance(nbest, NBestList) for nbest in lists)


JSON_FORMATS = [name for name, text in FILES.items() if text.startswith(("{", "["))]


def decorate(value, draw):
    """Change what means nothing in JSON: the order of keys, and further keys."""
    if isinstance(value, list):
        return [decorate(item, draw) for item in value]
    if not isinstance(value, dict):
        return value
    members = [(key, decorate(item, draw)) for key, item in draw(st.permutations(list(value.items())))]
    return dict(draw(st.sampled_from([[], [("x-note", {"text": ["[{", 1]})]])) + members)


@pytest.mark.parametrize("name", JSON_FORMATS)
@settings(max_examples=20)
@given(data=st.data())
def test_detects_json_whatever_its_keys_and_white_space(name, data):
    (document,) = parse_beginnings(FILES[name])
    indent = data.draw(st.sampled_from([None, 0, 2, "\t"]))
    text = json.dumps(decorate(document, data.draw), indent=indent, ensure_ascii=data.draw(st.booleans()))
    text = (
        data.draw(st.sampled_from(["", "\n", " \n\t"]))
        + text
        + data.draw(st.sampled_from(["", "\n", " \n\n"]))
    )
    text = data.draw(st.sampled_from(["", "\ufeff"])) + text.replace(
        "\n", data.draw(st.sampled_from(["\n", "\r\n"]))
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "u1"
        path.write_bytes(text.encode())
        detected = detect(path)[0]
        assert detected == name or {detected, name} == {"jsonl", "json"}
        lists = [item for item in choose(detected).read(path) if isinstance(item, NBestList)]
    assert lists[0].hypotheses[0].text.strip() in ("a", "a b")


@pytest.mark.parametrize("name", FOLDERS)
def test_detects_format_from_file_names_or_first_file_of_folder(tmp_path, name):
    for file, text in FOLDERS[name].items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert detect(tmp_path)[0] == name


def test_samples_cover_all_formats_that_can_be_detected():
    binary = {name for name, format_ in FORMATS.items() if format_.is_binary}
    assert set(FILES) | set(FOLDERS) | binary == set(FORMATS) - UNDETECTED


@pytest.mark.parametrize(
    ("name", "text", "evidence"),
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
def test_detects_json_lines_from_name_or_header(tmp_path, name, text, evidence):
    (tmp_path / name).write_text(text)
    detected, found_evidence = detect(tmp_path / name)
    assert (detected, found_evidence.startswith(evidence)) == ("jsonl", True)


def test_does_not_read_from_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(FILES["srilm"]), daemon=True)
    writing.start()
    assert detect("-")[0] == detect(tmp_path / "pipe")[0] == "jsonl"
    assert (tmp_path / "pipe").read_text() == FILES["srilm"]
    writing.join(10)


def test_error_for_ambiguous_folder_names_all_matching_formats(tmp_path):
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "acwt").write_text(FILES["srilm"])
    (folder / "words_text").write_text("u1-1 a\n")
    message = (
        r"could be srilm \(lines of two scores, a count and words\) or kaldi \(a folder with words_text\)"
    )
    with pytest.raises(FormatError, match=f"both: ambiguous: {message}; choose one with --format"):
        detect(folder)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"some words\n", "it begins with 'some words'"),
        (b"", "it is empty"),
        (
            b'[{"utt": "u1", "hyps": [{"sentence": "a"}], "ref": "a"}]',
            r".*; `--map hypotheses=hyps,text=sentence,reference=ref,id=utt` reads",
        ),
        (b"\xff\n", "it has no UTF-8 text"),
    ],
)
def test_rejects_files_of_unknown_format(tmp_path, data, message):
    (tmp_path / "u1").write_bytes(data)
    with pytest.raises(FormatError, match=f"u1: no known format matches: {message}"):
        detect(tmp_path / "u1")
    with pytest.raises(FormatError, match="No such file"):
        detect(tmp_path / "none")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("sphinx", "unknown format 'sphinx'; known: jsonl, json, parquet, table, srilm"),
        ("srilm:missing", "expected srilm:OPTION=VALUE,… with each option once"),
        ("srilm:missing=1,missing=2", "with each option once"),
        ("srilm:missing=much", "srilm: missing='much': expected a finite number"),
        ("nemo:beam=x", "nemo: beam='x': expected a positive integer"),
        ("srilm:colour=red", "srilm: unknown option 'colour' for writing; known: missing, scores"),
        ("kaldi:missing=0", "kaldi: unknown option 'missing' for writing; known: none"),
        ("srilm:missing=nan", "missing='nan': expected a finite number"),
    ],
)
def test_rejects_invalid_choices(tmp_path, choice, message):
    with pytest.raises(ConfigError) as caught:
        choose(choice).writer(tmp_path)
    assert message in str(caught.value)


def test_passes_read_options_to_the_reader(tmp_path):
    (tmp_path / "u1").write_text(FILES["htk"])
    lists = choose("htk:depth=2, lmscale=3.5").read(tmp_path / "u1")
    assert [nbest.id for nbest in lists] == ["u1"]
    with pytest.raises(ConfigError, match="htk: depth='0': expected a positive integer"):
        choose("htk:depth=0").read(tmp_path / "u1")


def test_names_what_a_format_cannot_hold():
    hypothesis = Hypothesis("a", {"nwords": 1, "note": 2})
    nbest = NBestList("u1", (hypothesis,), {"lm": (-1.0,), "x": (0.0,)}, "c", "r", "g", {"f": 1})
    assert FORMATS["jsonl"].find_losses(nbest) == set()
    assert "id" in FORMATS["nemo"].find_losses(nbest)
    assert FORMATS["srilm"].find_losses(nbest) == {
        "context", "reference", "group", "fields", "stream x", "hypothesis field note"
    }  # fmt: skip


def test_one_best_formats_lose_other_hypotheses():
    times = {"words": [{"word": "a", "start_s": 0.5, "duration_s": 0.25}]}
    nbest = NBestList("u1", (Hypothesis("a", times), Hypothesis("b")))
    assert FORMATS["trn"].find_losses(nbest) == {"hypotheses after the first", "hypothesis field words"}
    assert FORMATS["ctm"].find_losses(nbest) == {"hypotheses after the first"}
    with_confidence = {"words": [times["words"][0] | {"confidence": 0.5}]}
    nbest = NBestList("u1", (Hypothesis("a", with_confidence),), fields={"file": "u1", "note": 1})
    assert FORMATS["ctm"].find_losses(nbest) == {"fields"}
    assert FORMATS["nbestlist2"].find_losses(nbest) == {"fields", "word field confidence"}
    segment = replace(nbest, fields={"file": "u1"})
    assert FORMATS["stm"].find_losses(segment) == {"id", "hypothesis field words"}


def test_describes_contents_of_formats():
    assert FORMATS["jsonl"].describe_contents() == "everything"
    assert FORMATS["nemo"].describe_contents() == "texts, first_pass"
    expected = "ids, texts, acoustic, first_pass, lm, word times"
    assert FORMATS["nbestlist2"].describe_contents() == expected
    assert all(format_.describe_contents() for format_ in FORMATS.values())


def test_assigns_groups_only_to_lists_without_one():
    lists = [NBestList("s1-u1", (Hypothesis("a"),)), NBestList("s1-u2", (Hypothesis("a"),), group="own")]
    error = FormatError("bad")
    outcomes = list(registry.assign_groups(iter([*lists, error]), lambda list_id: list_id[:2]))
    assert [nbest.group for nbest in outcomes[:2]] == ["s1", "own"]
    assert outcomes[2] is error


def test_output_of_every_format_is_detected_and_read_again(tmp_path):
    scores = dict.fromkeys(("acoustic", "lm", "graph", "first_pass"), (-1.0, -2.0))
    timed = (("a", 0.5), ("b", 0.75))
    times = [{"word": word, "start_s": start, "duration_s": 0.25} for word, start in timed]
    hypotheses = (Hypothesis("a b", {"words": times}), Hypothesis("b", {"words": times[1:]}))
    segment = {"file": "u1", "channel": "1", "start_s": 0.0, "end_s": 1.0}
    nbest = NBestList("u1", hypotheses, scores, group="ann", fields=segment)
    for name in FORMATS:
        choice = choose(CHOICES_WITH_OPTIONS.get(name, name))
        with choice.writer(tmp_path / name) as write:
            write(nbest)
        assert name in {*UNDETECTED, "kaldi-text"} or detect(tmp_path / name)[0] == name
        (found,) = choice.read(tmp_path / name)
        texts = ["a b"] if FORMATS[name].one_best else ["a b", "b"]
        assert [hypothesis.text for hypothesis in found.hypotheses] == texts
