"""The protocol: generated code, lint, conversions of messages, and the table of errors and statuses."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from rescorer import (
    Calibration,
    ConfidenceMap,
    ConfigError,
    Hypothesis,
    InvalidList,
    LimitExceeded,
    NBestList,
    Weights,
    WordConfidence,
    errors,
)
from rescorer.extensions import make_ranker
from rescorer.formats.common import NATS_PER_UNIT
from rescorer.formats.jsonlines import encode_ranking
from rescorer.models.bundle import read_bundle
from rescorer.protocol.messages import (
    BUG,
    KINDS,
    error_from_status,
    list_from_proto,
    list_to_proto,
    rescored_from_proto,
    status_from_error,
    weights_from_proto,
    weights_to_proto,
    write_ranking,
)
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import ranking
from rescorer.service.settings import load_settings
from tests.conftest import REPOSITORY

BUF = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
finite = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def test_generated_code_is_up_to_date():
    tools = pytest.importorskip("grpc_tools.grpc_version", reason="grpcio-tools is not installed")
    from rescorer.protocol.v1 import rescorer_pb2_grpc

    generator = rescorer_pb2_grpc.GRPC_GENERATED_VERSION
    installed = tools.VERSION
    if installed != generator:
        pytest.skip(f"generated with grpcio-tools {generator}, but {installed} is installed")
    command = [sys.executable, REPOSITORY / "proto" / "generate.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "arguments", [["lint"], ["format", "--diff", "--exit-code", "--path", "proto/rescorer"]]
)
def test_buf_reports_no_problems(arguments):
    if BUF is None:
        pytest.skip("buf is not installed")
    result = subprocess.run([BUF, *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.tuples(words, finite), min_size=1, max_size=5),
    words,
)
def test_lists_survive_a_round_trip(list_id, hypotheses, context):
    sent = NBestList(
        list_id,
        tuple(Hypothesis(text) for text, _ in hypotheses),
        {"acoustic": tuple(score for _, score in hypotheses)},
        context,
    )
    data = list_to_proto(sent).SerializeToString()
    assert list_from_proto(pb.NBestList.FromString(data)) == sent


names = st.dictionaries(words, finite, max_size=3)


@given(words.filter(bool), names, names.filter(bool), finite, finite, names)
def test_weights_survive_a_round_trip(name, streams, lm, word, oov, mixture):
    sent = Weights(name, streams, lm, word, oov, mixture, ("abc",))
    assert weights_from_proto(weights_to_proto(sent)) == sent


def test_calibrations_and_confidences_survive_a_round_trip():
    curve = ConfidenceMap(2.5, (0.1, 0.9), (0.2, 0.8))
    for calibration in (Calibration(curve, curve), Calibration(word=curve), Calibration()):
        weights = Weights("sure", calibration=calibration)
        assert weights_from_proto(weights_to_proto(weights)) == weights
    nbest = NBestList("u1", (Hypothesis("<sil> a"), Hypothesis("b")))
    ranked = ranking(nbest, {"words": np.ones(2)}, np.array([1.0, 2.0]))
    words = (WordConfidence("<sil>", None), WordConfidence("a", 0.75))
    message = pb.RescoredList()
    write_ranking(replace(ranked, confidence=0.5, word_confidences=words), message)
    answer = rescored_from_proto(message, nbest, Weights(), "tiny/1")
    assert [hypothesis.confidence for hypothesis in answer.hypotheses] == [0.5, None]
    assert [hypothesis.word_confidences for hypothesis in answer.hypotheses] == [words, ()]


def test_rejects_an_invalid_calibration():
    part = pb.ConfidenceMap(temperature=-1, posteriors=[0.5], confidences=[0.5])
    with pytest.raises(ConfigError, match=r"weights.calibration.word: temperature is -1.0"):
        weights_from_proto(pb.Weights(calibration=pb.Calibration(word=part)))


def test_absent_weights_have_the_defaults_of_the_library():
    assert weights_from_proto(pb.Weights()) == Weights()


def test_names_are_read_in_their_order_since_messages_have_none():
    names = [f"model{number:03}" for number in range(100)]
    sent = pb.Weights(rerankers=dict.fromkeys(reversed(names), 1.0))
    assert list(weights_from_proto(sent).rerankers) == names


def test_absent_models_are_the_mixture():
    # An empty lm differs from an absent one, which would get the default.
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
def test_converts_every_base_and_sign_to_nats(base, name):
    assert len(pb.LogBase.keys()) == len(NATS_PER_UNIT) + 1
    for sign, factor in ((pb.SCORE_SIGN_LOG_PROB, 1.0), (pb.SCORE_SIGN_COST, -1.0)):
        message = make_message(base=base, sign=sign, values=[-2.0, 3.0])
        expected = [factor * value * NATS_PER_UNIT[name] for value in (-2.0, 3.0)]
        assert list_from_proto(message).streams["acoustic"] == pytest.approx(expected)


def make_message(**stream) -> pb.NBestList:
    fields = {"name": "acoustic", "base": pb.LOG_BASE_E, "sign": pb.SCORE_SIGN_LOG_PROB} | stream
    return pb.NBestList(
        id="u1",
        hypotheses=[pb.Hypothesis(text="a"), pb.Hypothesis(text="b")],
        streams=[pb.ScoreStream(**fields)],
    )


@pytest.mark.parametrize(
    ("stream", "field", "path", "expected"),
    [
        ({"base": 0}, 'streams["acoustic"].base', 'lists[2].streams["acoustic"].base', "not declared"),
        ({"base": 99}, 'streams["acoustic"].base', 'lists[2].streams["acoustic"].base', "unknown value 99"),
        ({"sign": 0}, 'streams["acoustic"].sign', 'lists[2].streams["acoustic"].sign', "SCORE_SIGN_COST"),
        ({"name": ""}, "streams[0].name", "lists[2].streams[0].name", "empty"),
        ({"values": [1.0, math.nan]}, 'streams["acoustic"]', 'lists[2].streams["acoustic"].values[1]', "nan"),
        ({"values": [-math.inf, 1]}, 'streams["acoustic"]', 'lists[2].streams["acoustic"].values[0]', "inf"),
    ],
)
def test_rejects_an_invalid_stream(stream, field, path, expected):
    with pytest.raises(InvalidList, match=expected) as caught:
        list_from_proto(make_message(**({"values": [1.0, 2.0]} | stream)))
    assert caught.value.field == field
    status = status_from_error(caught.value, path="lists[2]")
    bad_request = BadRequest()
    assert status.details[1].Unpack(bad_request)
    assert bad_request.field_violations[0].field == path


def test_rejects_duplicate_streams():
    message = make_message(values=[1.0, 2.0])
    message.streams.append(message.streams[0])
    with pytest.raises(InvalidList, match="duplicate name"):
        list_from_proto(message)


def test_rejects_text_that_utf8_cannot_encode():
    with pytest.raises(InvalidList, match="cannot be sent"):
        list_to_proto(NBestList("u1", (Hypothesis("\ud800"),)))


@pytest.mark.parametrize(
    ("hypotheses", "message"),
    [
        (("a b", "c"), "list 'u1', hypothesis 0: expected a Hypothesis, got str; write Hypothesis('a b')"),
        ("ab", "list 'u1', hypothesis 0: expected a Hypothesis, got str; write Hypothesis('a')"),
        ((Hypothesis("a"), {"text": "b"}), "list 'u1', hypothesis 1: expected a Hypothesis, got dict"),
        ((Hypothesis("a"), Hypothesis(7)), "list 'u1', hypothesis 1, text: expected a string, got int"),
    ],
)
def test_names_the_hypothesis_that_is_not_one(hypotheses, message, ngram_bundle):
    nbest, ranker = NBestList("u1", hypotheses), make_ranker(read_bundle(ngram_bundle))
    for check in (list_to_proto, lambda item: ranker.prepare(item, ranker.bind(Weights()))):
        with pytest.raises(InvalidList) as raised:
            check(nbest)
        assert str(raised.value) == message


def test_every_error_has_a_status_and_survives_a_round_trip():
    error_types = {value for value in vars(errors).values() if isinstance(value, type) and value is not Any}
    leaves = {error_type for error_type in error_types if not error_type.__subclasses__()}
    assert leaves - {errors.FormatError, errors.LoaderDied} <= {kind.error_type for kind in KINDS}
    for kind in (*KINDS, BUG):
        sent = kind.error_type("what is wrong")
        received = error_from_status(Status.FromString(status_from_error(sent, "r1").SerializeToString()))
        assert type(received) is kind.error_type
        assert ("what is wrong" in str(received)) is not kind.hidden
        assert ("r1" in str(received)) is kind.hidden


def test_invalid_list_keeps_its_place_in_a_round_trip():
    sent = InvalidList("odd", list_id="u1", hypothesis=3, field='streams["a"]')
    received = error_from_status(status_from_error(sent))
    assert str(received) == str(sent)
    assert (received.list_id, received.hypothesis, received.field) == ("u1", 3, 'streams["a"]')
    limit = LimitExceeded("too many", field="lists")
    assert str(error_from_status(status_from_error(limit))) == str(limit)


@pytest.mark.parametrize(
    ("code", "error_type"),
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
def test_status_without_details_becomes_an_error_by_its_code(code, error_type):
    assert type(error_from_status(Status(code=code.value[0], message="m"))) is error_type


@pytest.mark.parametrize(
    ("options", "expected"),
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
def test_rejects_inconsistent_settings(options, expected):
    with pytest.raises(ConfigError, match=expected):
        load_settings(**({"bundle": "somewhere"} | options))


def test_arguments_take_precedence_over_the_environment(monkeypatch):
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
def test_ranks_are_0_based_in_python_and_1_based_in_messages_and_files(scored, merge):
    nbest = NBestList("u", tuple(Hypothesis(text) for text, _ in scored))
    totals = np.array([total for _, total in scored])
    keys = [(text,) for text, _ in scored] if merge else None
    ordered = ranking(nbest, {"words": np.ones(len(scored))}, totals, keys)
    answer = ordered.to_rescored_list(Weights(), "m/1")
    assert all(
        nbest.hypotheses[hypothesis.original_rank].text == hypothesis.text for hypothesis in answer.hypotheses
    )
    message = pb.RescoredList()
    write_ranking(ordered, message)
    records = json.loads(encode_ranking(ordered, Weights(), "m/1"))["hypotheses"]
    for rank, (hypothesis, sent, record) in enumerate(
        zip(answer.hypotheses, message.hypotheses, records, strict=True), start=1
    ):
        merged_ranks = [merged + 1 for merged in hypothesis.merged_ranks]
        expected = (rank, hypothesis.original_rank + 1, merged_ranks)
        assert (sent.rank, sent.original_rank, list(sent.merged_ranks)) == expected
        assert (record["rank"], record["original_rank"], record.get("merged_ranks", [])) == expected
    received = rescored_from_proto(message, nbest, Weights(), "m/1").hypotheses
    assert [(hypothesis.original_rank, hypothesis.merged_ranks) for hypothesis in received] == [
        (hypothesis.original_rank, hypothesis.merged_ranks) for hypothesis in answer.hypotheses
    ]
