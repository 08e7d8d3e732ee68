"""Requests of this service as JSON: the same lists as in messages, and errors with the field's path."""

from __future__ import annotations

import io
import json
import math

import pytest

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.json_documents import BASES, SIGNS, read_service_request, service_request_writer
from rescorer.formats.registry import detect
from rescorer.protocol.messages import BASES as MESSAGE_BASES
from rescorer.protocol.messages import SIGNS as MESSAGE_SIGNS
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import Hypothesis, NBestList

STREAM = {"name": "am", "base": "LOG_BASE_10", "sign": "SCORE_SIGN_COST", "values": [1, 2.5]}
LIST = {"id": "u1", "hypotheses": [{"text": "a"}, {"fields": {"x": 1}, "partial": True}], "streams": [STREAM]}


def read(*documents: object, indent: int | None = None) -> list:
    text = "\n".join(json.dumps(document, indent=indent) for document in documents)
    return list(read_service_request(io.BytesIO(text.encode())))


def test_names_of_units_are_those_of_the_protocol():
    assert {pb.LogBase.Value(name): base for name, base in BASES.items()} == MESSAGE_BASES
    assert {pb.ScoreSign.Value(name): sign for name, sign in SIGNS.items()} == MESSAGE_SIGNS


@pytest.mark.parametrize("indent", [None, 2])
def test_reads_requests(tmp_path, indent):
    request = {"model": "starter", "lists": [LIST, {"hypotheses": [{"text": "b"}], "context": "c"}]}
    first, second = read(request, indent=indent)
    assert first.hypotheses == (Hypothesis("a"), Hypothesis("", {"x": 1}, partial=True))
    assert first.streams == {"am": pytest.approx((-math.log(10), -2.5 * math.log(10)))}
    assert second == NBestList("2", (Hypothesis("b"),), context="c")
    (tmp_path / "request.json").write_text(json.dumps(request, indent=indent))
    assert detect(tmp_path / "request.json")[0] == "request"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hypotheses": []}, "list 'u1': no hypotheses"),
        ({"hypotheses": [{"text": 3}]}, "list 'u1', hypotheses[0].text: expected a string, got a number"),
        (
            {"streams": [{**STREAM, "base": None}]},
            "streams[0].base: not declared; expected one of LOG_BASE_E",
        ),
        ({"streams": [{**STREAM, "values": [1]}]}, "streams[0]: 1 values; expected a name and one number"),
        ({"streams": [STREAM, STREAM]}, "streams[1].name: duplicate name"),
    ],
)
def test_names_the_field_of_an_invalid_list_and_reads_on(change, message):
    error, valid = read({"lists": [LIST | change, LIST]})
    assert isinstance(error, InvalidList)
    assert message in str(error)
    assert valid.id == "u1"


def test_rejects_what_is_not_a_request():
    for indent in (None, 1):
        with pytest.raises(FormatError, match="expected a request with an array 'lists'"):
            raise read({"lists": 3}, indent=indent)[0]


def test_round_trip(tmp_path):
    lists = [
        NBestList("u1", (Hypothesis("a", {"x": 1}), Hypothesis("", partial=True)), {"am": (-1.5, 2.0)}, "so"),
        NBestList("u2", (Hypothesis("ü"),), fields={"y": None}),
    ]
    with service_request_writer(tmp_path / "out.json") as write:
        for nbest in lists:
            write(nbest)
    assert detect(tmp_path / "out.json")[0] == "request"
    assert list(read_service_request(tmp_path / "out.json")) == lists
