"""Segments of meeteval: ids, speakers, use as hypotheses and as references, and writing."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rescorer.cli import app
from rescorer.errors import FormatError, InputError
from rescorer.formats.json_documents import find_id, read_seglst
from rescorer.formats.nist import read_groups, read_references
from rescorer.formats.registry import choose, detect
from rescorer.types import Hypothesis, NBestList

SEGMENT = {"end_time": "12.5", "start_time": "11.37", "words": "so um", "speaker": "P03", "session_id": "S05"}
OTHER = {"session_id": "S05", "speaker": "P04", "start_time": 12.5, "end_time": 13, "words": "the sea"}


def write(path, *segments, indent=2):
    path.write_text(json.dumps(segments, indent=indent, ensure_ascii=False))
    return path


@pytest.mark.parametrize("indent", [None, 1])
def test_reads_one_list_per_segment(tmp_path, indent):
    path = write(tmp_path / "hyp.json", SEGMENT, OTHER, indent=indent)
    assert detect(path)[0] == "seglst"
    first, second = read_seglst(path)
    fields = {"end_time": "12.5", "start_time": "11.37", "session_id": "S05"}
    assert first == NBestList("S05-P03-11.370", (Hypothesis("so um"),), group="P03", fields=fields)
    assert second.id == "S05-P04-12.500"


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ({"session_id": "a", "speaker": 1, "start_time": 0}, "a-1-0.000"),
        ({"session_id": "a", "speaker": "b", "segment_index": 7}, "a-b-7"),
        ({"session_id": "a"}, "a-3"),
        ({"session_id": "a", "start_time": "soon"}, "a-3"),
        ({"session_id": "a", "id": "own"}, "own"),
    ],
)
def test_ids_come_from_session_speaker_and_start(segment, expected):
    assert find_id(segment, 3) == expected


def test_a_segment_that_cannot_be_read_loses_itself(tmp_path):
    path = write(tmp_path / "hyp.json", SEGMENT, 3, {"session_id": "a", "words": None}, SEGMENT, OTHER)
    first, number, no_words, duplicate, last = read_seglst(path)
    assert (first.id, last.id) == ("S05-P03-11.370", "S05-P04-12.500")
    for error, message in (
        (number, "expected a segment as an object, got a number"),
        (no_words, "list 'a-3', words: expected a string, got nothing"),
        (duplicate, "duplicate id"),
    ):
        assert isinstance(error, InputError)
        assert message in str(error)


def test_measures_segments_against_segments(tmp_path):
    reference = write(tmp_path / "ref.json", SEGMENT, OTHER)
    hypotheses = write(tmp_path / "hyp.json", SEGMENT | {"start_time": 11.370, "words": "so"}, OTHER)
    assert read_references(reference) == {"S05-P03-11.370": "so um", "S05-P04-12.500": "the sea"}
    assert read_groups(reference) == {"S05-P03-11.370": "P03", "S05-P04-12.500": "P04"}
    command = ["evaluate", str(hypotheses), "--reference", str(reference), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert '"wer": 25.0' in result.stdout.replace("25.00", "25.0")
    with pytest.raises(FormatError, match="expected a segment with session_id, speaker and words"):
        read_references(write(tmp_path / "odd.json", SEGMENT, {"session_id": "S05"}))


def test_what_is_written_is_read_again(tmp_path):
    lists = [
        NBestList(
            "S05-P03-11.370",
            (Hypothesis("a b"),),
            group="P03",
            fields={"session_id": "S05", "start_time": 11.37},
        ),
        NBestList("u1", (Hypothesis(""),)),
        NBestList("u2", (Hypothesis("c"),), group="g", fields={"session_id": "S", "segment_index": 2}),
    ]
    choice = choose("seglst")
    with choice.writer(tmp_path / "out.json") as write_list:
        for nbest in lists:
            write_list(nbest)
        with pytest.raises(InputError, match="the names words are reserved"):
            write_list(NBestList("u3", (Hypothesis("a"),), fields={"words": []}))
    assert detect(tmp_path / "out.json")[0] == "seglst"
    first, second, third = choice.read(tmp_path / "out.json")
    assert (first, third) == (lists[0], lists[2])
    assert (second.id, second.hypotheses) == ("u1", (Hypothesis(""),))
