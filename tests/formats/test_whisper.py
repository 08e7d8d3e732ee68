"""Segments of Whisper: what its programs write, several hypotheses, round trips and invalid input."""

from __future__ import annotations

import io
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.registry import detect
from rescorer.formats.speech_services import HYPOTHESIS_KEYS, read_whisper, whisper_writer
from rescorer.types import Hypothesis, NBestList
from tests.support.list_strategies import nbest_lists, several

DECODED = {
    "tokens": [50364, 383, 1536, 13, 50464],
    "temperature": 0.0,
    "avg_logprob": -0.25,
    "compression_ratio": 0.8,
    "no_speech_prob": 0.01,
}
SEGMENT = {"id": 0, "seek": 0, "start": 0.0, "end": 2.5, "text": " A sea.", **DECODED}
TIMED = {"id": 1, "seek": 250, "start": 2.5, "end": 4.0, "text": " Calm.", **DECODED}
TIMED["words"] = [{"word": " Calm.", "start": 2.5, "end": 4.0, "probability": 0.9}]
OPENAI = {"text": " A sea. Calm.", "segments": [SEGMENT, TIMED], "language": "en"}
CPP = {
    "systeminfo": "AVX = 1",
    "result": {"language": "en"},
    "transcription": [
        {
            "timestamps": {"from": "00:00:00,000", "to": "00:00:02,500"},
            "offsets": {"from": 0, "to": 2500},
            "text": " A sea.",
        }
    ],
}


def read(text: str) -> list:
    return list(read_whisper(io.BytesIO(text.encode())))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("talk.json", json.dumps(OPENAI)),
        ("talk.json", json.dumps(OPENAI, indent=2)),
        ("talk.mp3.json", json.dumps([SEGMENT, TIMED], indent=4)),
        ("talk.json", json.dumps([SEGMENT, TIMED])),
        ("talk.jsonl", f"{json.dumps(SEGMENT)}\n{json.dumps(TIMED)}\n"),
        ("talk.txt", json.dumps(CPP, indent=2)),
    ],
)
def test_detects_and_reads_what_the_programs_write(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert detect(tmp_path / name)[0] == "whisper"
    first, *others = read_whisper(tmp_path / name)
    assert first.id == f"{name.rpartition('.')[0]}-0"
    assert first.hypotheses[0].text == " A sea."
    if "transcription" in text:
        assert first.fields == {key: CPP["transcription"][0][key] for key in ("timestamps", "offsets")}
        return
    assert first.fields == {"seek": 0, "start": 0.0, "end": 2.5}
    assert first.hypotheses[0].fields == DECODED
    assert first.streams == {"first_pass": (-0.25 * 6,)}
    assert others[0].hypotheses[0].fields["words"] == TIMED["words"]


def test_detects_segments_with_many_tokens_on_lines_of_their_own(tmp_path):
    long = SEGMENT | {"tokens": [*range(200)]}
    (tmp_path / "talk.json").write_text(json.dumps({"text": "", "segments": [long]}, indent=2))
    assert detect(tmp_path / "talk.json")[0] == "whisper"


def test_responses_of_services_in_a_file_named_jsonl_are_detected(tmp_path):
    (tmp_path / "out.jsonl").write_text('{"NBest": [{"Lexical": "a"}]}\n')
    assert detect(tmp_path / "out.jsonl")[0] == "alternatives"


@pytest.mark.parametrize("key", HYPOTHESIS_KEYS)
def test_reads_several_hypotheses_of_a_segment(tmp_path, key):
    items = [
        {"text": "a", "avg_logprob": -0.5, "tokens": [1, 2]},
        {"text": "", "avg_logprob": -2, "tokens": []},
    ]
    (tmp_path / "u.json").write_text(
        json.dumps({"segments": [{"id": 7, "start": 1.5, "text": "a", key: items}]})
    )
    assert detect(tmp_path / "u.json")[0] == "whisper"
    (nbest,) = read_whisper(tmp_path / "u.json")
    assert (nbest.id, nbest.fields) == ("u-7", {"start": 1.5, "text": "a"})
    assert nbest.streams == {"first_pass": (-1.5, -2.0)}


def test_hypotheses_of_a_segment_can_be_plain_texts():
    (nbest,) = read(json.dumps({"segments": [{"text": "a", "beams": ["a", "b"]}]}))
    assert nbest.hypotheses == (Hypothesis("a"), Hypothesis("b"))
    assert (nbest.streams, nbest.fields) == ({}, {"text": "a"})


def test_another_field_can_hold_the_score():
    segment = {"avg_logprob": -9, "beams": [{"text": "a", "p": 0.5}, {"text": "b", "p": 0.25}]}
    text = json.dumps({"segments": [segment]})
    (nbest,) = read_whisper(io.BytesIO(text.encode()), score="p", base="prob")
    assert nbest.streams == {"first_pass": (math.log(0.5), math.log(0.25))}
    with pytest.raises(ConfigError, match="a score and its base must be given together"):
        read_whisper(io.BytesIO(text.encode()), score="p")


def test_score_is_the_mean_unless_every_hypothesis_has_tokens():
    items = [{"text": "a", "avg_logprob": -0.5, "tokens": [1, 2]}, {"text": "b", "avg_logprob": -2}]
    (nbest,) = read(json.dumps({"segments": [{"candidates": items}]}))
    assert nbest.streams == {"first_pass": (-0.5, -2)}


def test_numbers_documents_and_keeps_ids_that_are_text():
    document = json.dumps({"segments": [{"text": "a"}, {"id": "own", "text": "b"}]})
    assert [nbest.id for nbest in read(document)] == ["stream-0", "own"]
    again = json.dumps({"segments": [{"id": 4, "text": "a"}]})
    assert [nbest.id for nbest in read(f"{document}\n\n{again}")] == ["stream-1-0", "own", "stream-3-4"]


def test_folder_has_one_file_per_recording(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(OPENAI))
    assert detect(tmp_path)[0] == "whisper"
    assert [nbest.id for nbest in read_whisper(tmp_path)] == ["a-0", "a-1", "b-0", "b-1"]


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (3, "list 'stream-1': expected a segment as an object, got a number"),
        ({"id": 5}, "list 'stream-5', hypothesis 0, text: expected a string, got nothing"),
        (
            {"text": "a", "avg_logprob": math.nan},
            "list 'stream-1', hypothesis 0, avg_logprob: 'nan' is not a",
        ),
        ({"text": "a", "avg_logprob": "x" * 500}, f"avg_logprob: '{'x' * 100}' is not a finite number"),
        ({"candidates": [3]}, "hypothesis 0: expected an object, got a number"),
        (
            {"candidates": [{"text": "a", "avg_logprob": -1}, {"text": "b"}]},
            "hypothesis 1, first_pass: no score",
        ),
        ({"id": 0, "text": "a"}, "list 'stream-0': duplicate id"),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_yields_error_for_invalid_segment_and_reads_on(segment, message, indent):
    valid, error, other = read(json.dumps([SEGMENT, segment, SEGMENT | {"id": 9}], indent=indent))
    assert isinstance(error, InvalidList)
    assert message in str(error)
    assert (valid.id, other.id) == ("stream-0", "stream-9")


@pytest.mark.parametrize("text", ["3", '{\n"text": "a"}', '{\n"segments": 3}', '"a"\n3', ""])
def test_rejects_files_without_segments(text):
    with pytest.raises((FormatError, InvalidList)):
        raise read(text)[0]


def test_reads_segments_before_a_syntax_error():
    *lists, error = read(json.dumps(OPENAI, indent=1).replace('"language"', '"language'))
    assert [nbest.id for nbest in lists] == ["stream-0", "stream-1"]
    assert isinstance(error, FormatError)


@given(several(nbest_lists(["first_pass"], fields=lambda text: {"tokens": [*range(len(text))]})))
def test_round_trip(lists):
    with tempfile.TemporaryDirectory() as folder:
        with whisper_writer(Path(folder) / "out.json.gz") as write:
            for nbest in lists:
                write(nbest)
        assert detect(Path(folder) / "out.json.gz")[0] == "whisper"
        found = list(read_whisper(Path(folder) / "out.json.gz"))
    for nbest, again in zip(lists, found, strict=True):
        assert [h.text for h in again.hypotheses] == [h.text for h in nbest.hypotheses]
        assert again.streams.keys() == nbest.streams.keys()
        for name, values in nbest.streams.items():
            assert again.streams[name] == pytest.approx(values, rel=1e-12)


def test_writer_rejects_lists_that_a_document_cannot_hold(tmp_path):
    valid = NBestList("u1", (Hypothesis("a"),))
    with whisper_writer(tmp_path / "out.json") as write:
        write(valid)
        for nbest, message in (
            (valid, "id: already written; expected each id once"),
            (replace(valid, id="u2", fields={"nbest": 1}), "nbest are reserved"),
            (
                replace(valid, id="u2", hypotheses=(Hypothesis("a", {"text": 1}),)),
                "the name text is reserved",
            ),
        ):
            with pytest.raises(InvalidList, match=message):
                write(nbest)
    assert list(read_whisper(tmp_path / "out.json")) == [valid]


def test_inspect_says_that_one_hypothesis_cannot_be_ranked(tmp_path):
    (tmp_path / "talk.json").write_text(json.dumps(OPENAI))
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "talk.json"), "--json"])
    (report,) = json.loads(result.stdout)["files"]
    (single,) = [finding for finding in report["findings"] if finding["code"] == "single"]
    assert "Whisper's programs print only the best text" in single["advice"]
