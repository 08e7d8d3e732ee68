"""NeMo manifests with beams or predicted texts: ids, references, scores, detection and writing."""

from __future__ import annotations

import json

import pytest

from rescorer.errors import InputError
from rescorer.formats.nemo import find_id, read_manifest
from rescorer.formats.registry import choose, detect
from rescorer.types import Hypothesis, NBestList

ENTRY = {"audio_filepath": "calls/u1.wav", "duration": 2.5, "text": "the sea was calm"}
BEAMS = [["the see was calm", -3.5], ["the sea was calm", -3.75]]


def write_manifest(folder, *records):
    path = folder / "manifest.json"
    path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))
    return path


def test_reads_beams_with_scores_reference_and_fields(tmp_path):
    path = write_manifest(tmp_path, ENTRY | {"pred_text": "the see was calm", "beams": BEAMS})
    assert detect(path) == ("manifest", "a manifest of NeMo, with 'beams'")
    hypotheses = tuple(Hypothesis(text) for text, _ in BEAMS)
    fields = {"audio_filepath": "calls/u1.wav", "duration": 2.5}
    streams = {"first_pass": (-3.5, -3.75)}
    assert list(read_manifest(path)) == [
        NBestList("u1", hypotheses, streams, reference="the sea was calm", fields=fields)
    ]


def test_a_line_without_beams_has_the_predicted_text(tmp_path):
    path = write_manifest(tmp_path, ENTRY | {"pred_text": "the see", "speaker": "ann"})
    (nbest,) = read_manifest(path)
    assert ([h.text for h in nbest.hypotheses], nbest.streams, nbest.group) == (["the see"], {}, "ann")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"audio_filepath": "/data/calls.d/u1.flac"}, "u1"),
        ({"audio_filepath": "C:\\calls\\u1.wav"}, "u1"),
        ({"audio_filepath": "u1.wav", "offset": 12.5}, "u1-12.5"),
        ({"audio_filepath": "u1.wav", "offset": 0.0}, "u1"),
        ({"audio_filepath": "u1.wav", "id": "x"}, "x"),
        ({"duration": 1.0}, "7"),
    ],
)
def test_ids_come_from_the_audio(record, expected):
    assert find_id(record, 7) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beams": [["a", -1.0], "b"]}, "no score, though other hypotheses of the list have one"),
        ({"beams": [["a", -1.0, 3]]}, r"beams\[0\]: expected a pair of text and score"),
        ({"beams": [[-1.0, "a"]]}, "expected a pair of text and score"),
        ({"beams": {}}, "beams: expected an array, got an empty object"),
        ({"beams": []}, "no hypotheses"),
        ({}, "missing, and so is pred_text"),
        ({"text": 3, "beams": BEAMS}, "text: expected a string, got a number"),
    ],
)
def test_a_line_that_cannot_be_read_loses_itself(tmp_path, change, message):
    other = ENTRY | {"audio_filepath": "u2.wav", "beams": BEAMS}
    error, nbest = read_manifest(write_manifest(tmp_path, ENTRY | change, other))
    assert isinstance(error, InputError)
    with pytest.raises(InputError, match=message):
        raise error
    assert nbest.id == "u2"


@pytest.mark.parametrize("audio", ["calls/u1.wav", "calls/other.wav", None])
def test_what_is_written_is_read_again(tmp_path, audio):
    fields = {"duration": 2.5} | ({"audio_filepath": audio} if audio else {})
    hypotheses = (Hypothesis("a  b"), Hypothesis(""))
    nbest = NBestList("u1", hypotheses, {"first_pass": (-0.1, -7.25)}, reference="", group="g", fields=fields)
    bare = NBestList("u2", hypotheses)
    choice = choose("manifest")
    with choice.writer(tmp_path / "out") as write:
        write(nbest)
        write(bare)
    assert detect(tmp_path / "out")[0] == "manifest"
    assert list(choice.read(tmp_path / "out")) == [nbest, bare]
    with (
        choice.writer(tmp_path / "odd") as write,
        pytest.raises(InputError, match="names beams, text are reserved"),
    ):
        write(NBestList("u1", hypotheses, fields={"beams": 1, "text": 2}))
