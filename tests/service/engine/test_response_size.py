"""The size of an answer is bounded before it is made, and the bound is neither too low nor far too high."""

from __future__ import annotations

import re
from dataclasses import replace

import grpc
import numpy as np
import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from rescorer.extensions import make_ranker
from rescorer.protocol.messages import text_score_to_proto, weights_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.scoring.components import PreparedList
from rescorer.service.engine.request_bounds import (
    LIST_STATUS_BYTES,
    RESPONSE_BYTES,
    check_response_size,
    check_text_response_size,
)
from rescorer.service.metrics import resident_bytes
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.types import Calibration, ConfidenceMap, Hypothesis, NBestList, TextScore
from tests.support.serve_command import run_serve_command
from tests.support.servers import run_server
from tests.support.stubs import expect_error, make_list_message

HUGE = 1 << 60
POINTS = tuple((i + 0.5) / 100 for i in range(100))
MANY_POINTS = ConfidenceMap(1.0, POINTS, POINTS)
CODES = grpc.StatusCode

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def server(bundle):
    with run_server(bundle, max_response_bytes=100_000) as server:
        yield server


@pytest.fixture(scope="module")
def stub(server):
    with grpc.insecure_channel(server.target) as channel:
        yield RescorerServiceStub(channel)


def with_streams(nbest: pb.NBestList, *stream_names: str) -> pb.NBestList:
    for name in stream_names:
        nbest.streams.add(name=name, base=1, sign=1, values=[-1.0] * len(nbest.hypotheses))
    return nbest


@pytest.mark.slow
def test_long_stream_names_do_not_multiply_into_an_answer_that_fills_the_memory(ngram_bundle, tmp_path):
    """0.5 MB became an answer of 1 GB, and the front end took 3 GB."""
    many = make_list_message(texts=[f"the {i}" for i in range(2000)])
    several = [with_streams(make_list_message(texts=["the"] * 2000), f"{i}" + "n" * 900) for i in range(20)]
    with run_serve_command(ngram_bundle, tmp_path) as (process, client):
        stub = client._connections.stub
        before = resident_bytes(process.pid)
        (long_name,) = stub.Rescore(pb.RescoreRequest(lists=[with_streams(many, "n" * 500_000)])).lists
        assert "500000 characters; expected at most 1000 (max_name_chars)" in long_name.status.message
        code, details, reason, field = expect_error(stub.Rescore, pb.RescoreRequest(lists=several))
        assert (code, reason) == (CODES.INVALID_ARGUMENT, "LIMIT_EXCEEDED")
        assert "(max_response_bytes)" in details
        assert field.startswith("lists[")
        assert resident_bytes(process.pid) - before < 100e6


def test_refuses_lists_whose_answers_are_too_large_together(stub):
    lists = [with_streams(make_list_message(texts=["the"] * 10), "n" * 500)] * 20
    code, details, reason, field = expect_error(stub.Rescore, pb.RescoreRequest(lists=lists))
    assert (code, reason) == (CODES.INVALID_ARGUMENT, "LIMIT_EXCEEDED")
    assert (found := re.fullmatch(r"lists\[(\d+)\]", field))
    assert f"the first {int(found[1]) + 1} of 20 lists" in details
    assert "expected at most 100000 (max_response_bytes)" in details


def test_a_list_whose_answer_is_too_large_alone_does_not_affect_others(stub):
    large = with_streams(make_list_message(texts=["the"] * 200), "n" * 600)
    first, second = stub.Rescore(pb.RescoreRequest(lists=[large, make_list_message()])).lists
    assert "(max_response_bytes)" in first.status.message
    assert (len(second.hypotheses), second.status.code) == (2, 0)


def test_refuses_texts_whose_scores_are_too_large(stub):
    request = pb.ScoreTextRequest(texts=["the cat " * 200] * 20)
    code, details, reason, field = expect_error(stub.ScoreText, request)
    assert (code, reason, field) == (CODES.INVALID_ARGUMENT, "LIMIT_EXCEEDED", "texts")
    assert "expected at most 100000 (max_response_bytes)" in details


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.RescoreRequest(model="m" * 1001), "model"),
        (pb.RescoreRequest(weights_name="w" * 1001), "weights_name"),
        (pb.RescoreRequest(weights=pb.Weights(name="w" * 1001)), "weights.name"),
        (pb.RescoreRequest(weights=pb.Weights(streams={"w" * 1001: 1})), "a name in weights.streams"),
        (pb.RescoreRequest(weights=pb.Weights(tuned_on=["w" * 1001])), "a name in weights.tuned_on"),
    ],
)
def test_refuses_long_names(stub, request_, field):
    code, details, reason, where = expect_error(stub.Rescore, request_)
    assert (code, reason, where) == (CODES.INVALID_ARGUMENT, "LIMIT_EXCEEDED", field)
    assert "1001 characters; expected at most 1000 (max_name_chars)" in details


def test_refuses_a_list_with_a_long_id_and_quotes_little_of_it(stub):
    answer, other = stub.Rescore(
        pb.RescoreRequest(lists=[make_list_message("i" * 2000), make_list_message()])
    ).lists
    assert answer.id == "i" * 2000
    assert "(max_name_chars)" in answer.status.message
    assert other.status.code == 0


@st.composite
def list_messages(draw):
    texts = draw(st.lists(st.sampled_from(["the cat", "", "ä ö", "the " * 30]), min_size=1, max_size=30))
    nbest = make_list_message(draw(names), texts)
    with_streams(nbest, *draw(st.sets(names, max_size=4)))
    if draw(st.booleans()):
        nbest.fields.update({draw(names): draw(names)})
        nbest.hypotheses[0].fields.CopyFrom(Struct(fields={}))
    return nbest


MAP = pb.ConfidenceMap(temperature=1.5, posteriors=[0.1, 0.9], confidences=[0.2, 0.8])
CALIBRATED = pb.Weights(calibration=pb.Calibration(utterance=MAP, word=MAP))


DECISIONS = [
    None,
    pb.DecisionRule(kind=pb.DECISION_KIND_MINIMUM_BAYES_RISK),
    pb.DecisionRule(kind=pb.DECISION_KIND_CONFUSION_NETWORK, temperature=100.0),
]


@given(
    st.lists(list_messages(), max_size=3),
    st.booleans(),
    st.sampled_from([None, CALIBRATED]),
    st.sampled_from(DECISIONS),
)
def test_a_response_is_never_larger_than_its_bound(stub, server, lists, merge, weights, decision):
    request = pb.RescoreRequest(lists=lists, merge=merge, weights=weights, decision=decision)
    ranker = make_ranker(server.server.models.version().ranker.bundle)
    bound = check_response_size(request, request.ByteSize(), ranker, HUGE)
    size = stub.Rescore(request).ByteSize()
    assert size <= bound <= 4 * size + RESPONSE_BYTES + LIST_STATUS_BYTES * (1 + len(lists))


def test_the_bound_of_a_response_counts_the_calibration_of_the_bundle(server):
    bundle = server.server.models.version().ranker.bundle
    weights = replace(bundle.weights["default"], calibration=Calibration(word=MANY_POINTS))
    calibrated = replace(bundle, weights={"default": weights})
    request = pb.RescoreRequest(lists=[make_list_message(texts=["a " * 5000])])
    plain = check_response_size(request, request.ByteSize(), make_ranker(bundle), HUGE)
    bound = check_response_size(request, request.ByteSize(), make_ranker(calibrated), HUGE)
    words = [pb.WordConfidence(word="a", confidence=0.5)] * 5000
    hypothesis = pb.RescoredHypothesis(word_confidences=words)
    assert bound - plain >= hypothesis.ByteSize() + weights_to_proto(weights).calibration.ByteSize()


def test_the_bound_of_a_response_counts_the_consensus(server):
    bundle = server.server.models.version().ranker.bundle
    lists = [make_list_message(texts=["a " * 500, "b " * 400])]
    plain = pb.RescoreRequest(lists=lists)
    network = pb.RescoreRequest(lists=lists, decision=DECISIONS[2])
    word = pb.ConsensusWord(word="a", posterior=0.5, start_s=0.0, duration_s=1.0)
    added = pb.RescoredList(consensus=[word] * 900, consensus_rank=1).ByteSize()
    bounds = [
        check_response_size(request, plain.ByteSize(), make_ranker(bundle), HUGE)
        for request in (plain, network)
    ]
    assert bounds[1] - bounds[0] >= added
    by_weights = pb.RescoreRequest(lists=lists, weights=pb.Weights(decision=DECISIONS[2]))
    assert check_response_size(by_weights, plain.ByteSize(), make_ranker(bundle), HUGE) >= bounds[0] + added


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (NormaliserSettings(replace={"a": " ".join("bc" * 25)}), "a " * 500),
        (NormaliserSettings(unicode_form="NFKC"), "\ufdfa " * 500),
        (NormaliserSettings(case="upper"), "\u0390 " * 500),
    ],
)
def test_the_bound_of_a_response_counts_consensus_words_that_are_longer_than_the_text(server, settings, text):
    normaliser = Normaliser(settings)
    ranker = make_ranker(server.server.models.version().ranker.bundle)
    ranker.text_normaliser = normaliser
    request = pb.RescoreRequest(lists=[make_list_message(texts=[text])], decision=DECISIONS[2])
    words = [
        pb.ConsensusWord(word=word, posterior=0.5, text=surface)
        for word, surface in zip(normaliser.normalise(text), normaliser.surfaces(text), strict=True)
    ]
    assert check_response_size(request, 0, ranker, HUGE) >= pb.RescoredList(consensus=words).ByteSize()


@given(st.lists(st.lists(names, max_size=20), max_size=10))
def test_text_scores_are_never_larger_than_their_bound(server, texts):
    bundle = server.server.models.version().ranker.bundle
    request = pb.ScoreTextRequest(texts=[" ".join(words) for words in texts])
    response = pb.ScoreTextResponse(model=bundle.label, weights=weights_to_proto(bundle.weights["default"]))
    for text, words in zip(request.texts, texts, strict=True):
        values = tuple(np.full(len(words) + 1, -1.5))
        log_probs = dict.fromkeys((*bundle.model_kinds, "mixture"), values)
        score = TextScore(text, tuple(words), log_probs, (True,) * len(words))
        response.scores.append(text_score_to_proto(score))
    nbest = NBestList("", tuple(map(Hypothesis, request.texts)))
    prepared = PreparedList(nbest, tuple(map(tuple, texts)), (), make_ranker(bundle).bind(), ())
    bound = check_text_response_size(request, [prepared] if texts else [], bundle, HUGE)
    assert response.ByteSize() <= bound
