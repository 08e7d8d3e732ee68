"""The wire: generated code in step with proto/, lint, conversions, the table of faults, the settings."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from rescorer import ConfigError, Hypothesis, InvalidList, LimitExceeded, NBestList, Weights, errors
from rescorer.formats.nbest.jsonlines_output import encode_rescored_list
from rescorer.formats.score_units import NATS_PER_UNIT
from rescorer.protocol.messages import (
    list_from_proto,
    list_to_proto,
    rescored_from_proto,
    weights_from_proto,
    weights_to_proto,
    write_ranking,
)
from rescorer.protocol.status import BUG, KINDS, error_from_status, status_from_error
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import ranking
from rescorer.service.preflight import load_settings
from tests.conftest import REPOSITORY

BUF = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
finite = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def test_generated_code_is_what_the_proto_says():
    tools = pytest.importorskip("grpc_tools.grpc_version")
    from rescorer.protocol.v1 import rescorer_pb2_grpc

    made_by = rescorer_pb2_grpc.GRPC_GENERATED_VERSION
    installed = tools.VERSION
    if installed != made_by:
        pytest.skip(f"made with grpcio-tools {made_by}, installed is {installed}")
    command = [sys.executable, REPOSITORY / "proto" / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments", [["lint"], ["format", "--diff", "--exit-code", "--path", "proto/rescorer"]]
)
def test_buf_finds_nothing(arguments):
    if BUF is None:
        pytest.skip("no buf beside this python")
    done = subprocess.run([BUF, *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.tuples(words, finite), min_size=1, max_size=5),
    words,
)
def test_lists_come_through_the_wire_unchanged(list_id, hypotheses, context):
    sent = NBestList(
        list_id,
        tuple(Hypothesis(text) for text, _ in hypotheses),
        {"acoustic": tuple(score for _, score in hypotheses)},
        context,
    )
    wire = list_to_proto(sent).SerializeToString()
    assert list_from_proto(pb.NBestList.FromString(wire)) == sent


names = st.dictionaries(words, finite, max_size=3)


@given(words.filter(bool), names, names.filter(bool), finite, finite, names)
def test_weights_come_through_the_wire_unchanged(name, streams, lm, word, oov, mixture):
    sent = Weights(name, streams, lm, word, oov, mixture, ("abc",))
    assert weights_from_proto(weights_to_proto(sent)) == sent


def test_absent_weights_are_those_of_the_library():
    assert weights_from_proto(pb.Weights()) == Weights()
    # No LM at all is not the same as none named.
    assert weights_from_proto(weights_to_proto(Weights(lm={}))).lm == {"mixture": 0.0}


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (pb.LOG_BASE_E, "e"),
        (pb.LOG_BASE_2, "2"),
        (pb.LOG_BASE_10, "10"),
        (pb.LOG_BASE_1_0001, "1.0001"),
        (pb.LOG_BASE_BYTELOG, "bytelog"),
    ],
)
def test_every_base_and_sign_becomes_nats(base, name):
    assert len(pb.LogBase.keys()) == len(NATS_PER_UNIT) + 1
    for sign, factor in ((pb.SCORE_SIGN_LOG_PROB, 1.0), (pb.SCORE_SIGN_COST, -1.0)):
        message = one_list(base=base, sign=sign, values=[-2.0, 3.0])
        expected = [factor * value * NATS_PER_UNIT[name] for value in (-2.0, 3.0)]
        assert list_from_proto(message).streams["acoustic"] == pytest.approx(expected)


def one_list(**stream) -> pb.NBestList:
    given = {"name": "acoustic", "base": pb.LOG_BASE_E, "sign": pb.SCORE_SIGN_LOG_PROB} | stream
    return pb.NBestList(
        id="u1",
        hypotheses=[pb.Hypothesis(text="a"), pb.Hypothesis(text="b")],
        streams=[pb.ScoreStream(**given)],
    )


@pytest.mark.parametrize(
    ("stream", "field", "path", "part"),
    [
        ({"base": 0}, 'streams["acoustic"].base', 'lists[2].streams["acoustic"].base', "not declared"),
        ({"base": 99}, 'streams["acoustic"].base', 'lists[2].streams["acoustic"].base', "99 is not known"),
        ({"sign": 0}, 'streams["acoustic"].sign', 'lists[2].streams["acoustic"].sign', "SCORE_SIGN_COST"),
        ({"name": ""}, "streams[0].name", "lists[2].streams[0].name", "empty"),
        ({"values": [1.0, math.nan]}, 'streams["acoustic"]', 'lists[2].streams["acoustic"].values[1]', "nan"),
        ({"values": [-math.inf, 1]}, 'streams["acoustic"]', 'lists[2].streams["acoustic"].values[0]', "inf"),
    ],
)
def test_a_bad_stream_is_named(stream, field, path, part):
    with pytest.raises(InvalidList, match=part) as caught:
        list_from_proto(one_list(**({"values": [1.0, 2.0]} | stream)))
    assert caught.value.field == field
    status = status_from_error(caught.value, path="lists[2]")
    bad = BadRequest()
    assert status.details[1].Unpack(bad)
    assert bad.field_violations[0].field == path


def test_a_stream_that_comes_twice_is_refused():
    message = one_list(values=[1.0, 2.0])
    message.streams.append(message.streams[0])
    with pytest.raises(InvalidList, match="comes twice"):
        list_from_proto(message)


def test_text_that_is_no_unicode_is_refused_before_it_is_sent():
    with pytest.raises(InvalidList, match="cannot be sent"):
        list_to_proto(NBestList("u1", (Hypothesis("\ud800"),)))


def test_every_fault_has_a_code_and_comes_back_as_itself():
    every = {each for each in vars(errors).values() if isinstance(each, type) and each is not Any}
    leaves = {each for each in every if not each.__subclasses__()} - {errors.FormatError, errors.BundleError}
    assert leaves <= {kind.fault for kind in KINDS}
    for kind in (*KINDS, BUG):
        fault = kind.fault("what is wrong")
        back = error_from_status(Status.FromString(status_from_error(fault, "r1").SerializeToString()))
        assert type(back) is kind.fault
        assert ("what is wrong" in str(back)) is not kind.hidden
        assert ("r1" in str(back)) is kind.hidden


def test_an_invalid_list_comes_back_with_its_place():
    fault = InvalidList("odd", list_id="u1", hypothesis=3, field='streams["a"]')
    back = error_from_status(status_from_error(fault))
    assert str(back) == str(fault)
    assert (back.list_id, back.hypothesis, back.field) == ("u1", 3, 'streams["a"]')
    limit = LimitExceeded("too many", field="lists")
    assert str(error_from_status(status_from_error(limit))) == str(limit)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InputError),
        (grpc.StatusCode.NOT_FOUND, errors.ModelNotFound),
        (grpc.StatusCode.INTERNAL, errors.ScoringError),
        (grpc.StatusCode.CANCELLED, errors.Unavailable),
        (grpc.StatusCode.UNIMPLEMENTED, errors.ServiceError),
    ],
)
def test_a_status_without_details_becomes_a_fault_by_its_code(code, kind):
    assert type(error_from_status(Status(code=code.value[0], message="m"))) is kind


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"host": "0.0.0.0"}, "allow_insecure"),
        ({"host": "::"}, "plain text"),
        ({"host": "example.org"}, "plain text"),
        ({"port": 70000}, "port"),
        ({"max_lists": 100, "max_in_flight_lists": 99}, "never be accepted"),
        ({"max_hypotheses": 0}, "max_hypotheses"),
        ({"bundle": None}, "bundle"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given, part):
    with pytest.raises(ConfigError, match=part):
        load_settings(**({"bundle": "somewhere"} | given))


def test_settings_come_from_arguments_then_the_environment(monkeypatch):
    monkeypatch.setenv("RESCORER_PORT", "1234")
    monkeypatch.setenv("RESCORER_MAX_LISTS", "7")
    settings = load_settings(bundle="somewhere", port=99, max_lists=None)
    assert (settings.port, settings.max_lists) == (99, 7)
    assert load_settings(bundle="x", host="::1").address == "[::1]:1234"
    assert load_settings(bundle="x", host="0.0.0.0", allow_insecure=True).address == "0.0.0.0:1234"
    monkeypatch.setenv("RESCORER_PORT", "many")
    with pytest.raises(ConfigError, match="port"):
        load_settings(bundle="somewhere")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-9, 9)), min_size=1, max_size=5), st.booleans())
def test_ranks_count_from_0_in_python_and_from_1_in_messages_and_files(scored, merge):
    nbest = NBestList("u", tuple(Hypothesis(text) for text, _ in scored))
    totals = np.array([total for _, total in scored])
    keys = [(text,) for text, _ in scored] if merge else None
    ordered = ranking(nbest, {"words": np.ones(len(scored))}, totals, keys)
    answer = ordered.to_rescored_list(Weights(), "m/1")
    assert all(nbest.hypotheses[each.original_rank].text == each.text for each in answer.hypotheses)
    message = pb.RescoredList()
    write_ranking(ordered, message)
    in_file = json.loads(encode_rescored_list(answer))["hypotheses"]
    for rank, (each, sent, line) in enumerate(
        zip(answer.hypotheses, message.hypotheses, in_file, strict=True), start=1
    ):
        places = [place + 1 for place in each.merged_ranks]
        assert (sent.rank, sent.original_rank, list(sent.merged_ranks)) == (
            rank,
            each.original_rank + 1,
            places,
        )
        assert (line["rank"], line["original_rank"], line.get("merged_ranks", [])) == (
            rank,
            each.original_rank + 1,
            places,
        )
    back = rescored_from_proto(message, nbest, Weights(), "m/1").hypotheses
    assert [(each.original_rank, each.merged_ranks) for each in back] == [
        (each.original_rank, each.merged_ranks) for each in answer.hypotheses
    ]
