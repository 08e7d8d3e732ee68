"""Refused requests and rejected lists: statuses and messages, and no effect on others."""

from __future__ import annotations

import gc
import math

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_status import rpc_status

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.server import SERVICE
from tests.support.http2 import RESCORE, RESCORE_STREAM
from tests.support.servers import run_server, wait_until
from tests.support.stubs import LIMITS, SERVING, expect_error, make_list_message

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server_settings():
    return LIMITS


@pytest.fixture
def paused(server):
    """The server with scoring paused until the end of the test at the latest."""
    server.scorer.gate.clear()
    server.scorer.entered.clear()
    yield server
    server.scorer.gate.set()


def test_invalid_list_does_not_affect_the_others(stub):
    lists = [
        make_list_message("good"),
        make_list_message("nan", values=[1.0, math.nan]),
        make_list_message("none", texts=()),
        make_list_message("short", values=[1.0]),
    ]
    answers = stub.Rescore(pb.RescoreRequest(lists=lists)).lists
    assert [answer.id for answer in answers] == ["good", "nan", "none", "short"]
    assert [answer.status.code for answer in answers] == [0, 3, 3, 3]
    assert [len(answer.hypotheses) for answer in answers] == [2, 0, 0, 0]
    fields = []
    for answer in answers[1:]:
        bad_request = BadRequest()
        assert answer.status.details[1].Unpack(bad_request)
        fields.append(bad_request.field_violations[0].field)
    assert fields == [
        'lists[1].streams["acoustic"].values[1]',
        "lists[2].hypotheses",
        'lists[3].streams["acoustic"]',
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (make_list_message(texts=["a"] * 6), "lists[0].hypotheses"),
        (make_list_message(texts=["a", "a " * 7]), "lists[0].hypotheses[1].text"),
        (make_list_message(texts=["a", "a-" * 7]), "lists[0].hypotheses[1].text"),
        (pb.NBestList(hypotheses=[pb.Hypothesis(text="a")], context="a " * 7), "lists[0].context"),
    ],
)
def test_rejects_only_the_list_that_exceeds_a_limit(stub, message, field):
    answers = stub.Rescore(pb.RescoreRequest(lists=[message, make_list_message()])).lists
    assert [answer.status.code for answer in answers] == [3, 0]
    bad_request = BadRequest()
    assert answers[0].status.details[1].Unpack(bad_request)
    assert bad_request.field_violations[0].field == field
    assert "expected at most" in answers[0].status.message


def test_refuses_invalid_requests(stub):
    invalid, lists = grpc.StatusCode.INVALID_ARGUMENT, [make_list_message()]
    code, text, reason, field = expect_error(stub.Rescore, pb.RescoreRequest(lists=lists * 5))
    assert (code, reason, field) == (invalid, "LIMIT_EXCEEDED", "lists")
    assert "more than 4 lists; expected at most 4" in text
    code, text, reason, _ = expect_error(stub.Rescore, pb.RescoreRequest(lists=lists, weights_name="other"))
    assert (code, reason) == (invalid, "INVALID_CONFIG")
    assert "'other'; the bundle has: default" in text
    for weights in (
        pb.Weights(lm={"gpt": 1.0}),
        pb.Weights(mixture={"ngram": 0.4, "neural": 0.4}),
        pb.Weights(word=math.inf),
        pb.Weights(streams={"acoustic": math.nan}),
    ):
        assert expect_error(stub.Rescore, pb.RescoreRequest(lists=lists, weights=weights))[0] == invalid
    many = make_list_message()
    many.previous.extend([pb.Utterance()] * 51)
    code, text, reason, field = expect_error(stub.Rescore, pb.RescoreRequest(lists=[many]))
    assert (code, reason, field) == (invalid, "LIMIT_EXCEEDED", "previous")
    assert "more than 50 utterances; expected at most 50 (max_previous)" in text
    assert expect_error(stub.ScoreText, pb.ScoreTextRequest(texts=["a"] * 6))[3] == "texts"
    assert expect_error(stub.ScoreText, pb.ScoreTextRequest(texts=["a", "a " * 7]))[3] == "texts[1]"
    code, text, reason, _ = expect_error(stub.Rescore, pb.RescoreRequest(lists=lists, model="tiny/2"))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert "'tiny/1' is" in text
    large = pb.RescoreRequest(lists=[make_list_message(texts=["a" * 70_000])])
    code, text, reason, _ = expect_error(stub.Rescore, large)
    assert (code, reason) == (invalid, "LIMIT_EXCEEDED")
    assert "expected at most 65536 (max_message_bytes)" in text


@pytest.mark.parametrize("name", ["default", "defualt", "mine"])
def test_refuses_a_name_of_weights_in_the_place_of_weights(stub, name):
    lists, weights = [make_list_message()], pb.Weights(name=name)
    hint = "" if name == "default" else " The bundle has: default"
    for call, request in (
        (stub.Rescore, pb.RescoreRequest(lists=lists, weights=weights)),
        (stub.RescoreStream, iter([pb.RescoreStreamRequest(lists=lists, weights=weights)])),
    ):
        code, text, reason, _ = expect_error(call, request)
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_CONFIG")
        assert f'weights has only a name; did you mean weights_name: "{name}"' in text
        assert hint in text
    texts = pb.ScoreTextRequest(texts=["the cat"], weights=weights)
    if name == "default":
        assert "did you mean weights_name" in expect_error(stub.ScoreText, texts)[1]
    else:  # nothing that counts is left out: without streams, such weights mean what they say
        assert stub.ScoreText(texts).weights.name == name
        without_streams = pb.NBestList(hypotheses=[pb.Hypothesis(text="the cat")])
        answer = stub.Rescore(pb.RescoreRequest(lists=[without_streams], weights=weights))
        assert (answer.lists[0].status.code, answer.weights.name) == (0, name)
    alone = pb.Weights(name="mine", lm={"mixture": 1.0})  # language models alone, on purpose
    assert stub.Rescore(pb.RescoreRequest(lists=lists, weights=alone)).lists[0].status.code == 0


@pytest.mark.parametrize("letter", ["x", "猫", "\x00"])
def test_shortens_errors_that_quote_the_request_to_fit_into_headers(stub, letter):
    quoted = 1000 * letter
    code, text, reason, _ = expect_error(
        stub.Rescore, pb.RescoreRequest(lists=[make_list_message()], model=quoted)
    )
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert len(text) <= 200
    assert text.endswith("is not served; 'tiny/1' is")
    code, _, reason, _ = expect_error(stub.ScoreText, pb.ScoreTextRequest(texts=["a"], weights_name=quoted))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_CONFIG")


def test_refuses_bytes_that_are_not_a_message(channel):
    for method in ("Rescore", "ScoreText"):
        call = channel.unary_unary(f"/{SERVICE}/{method}")
        code, text, reason, _ = expect_error(call, b"\x0a\xff\xff")
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT")
        assert "cannot be decoded" in text
    call = channel.stream_stream(f"/{SERVICE}/RescoreStream")
    assert expect_error(call, iter([b"\x0a\xff\xff"]))[0] == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Rescore", "RescoreStream"])
def test_internal_errors_are_logged_but_not_sent(stub, server, method, capfd, monkeypatch):
    monkeypatch.setattr(server.scorer, "error", RuntimeError("secret path"))
    metadata = (("x-request-id", "my-id.1"),)
    if method == "Rescore":
        code, text, reason, _ = expect_error(
            stub.Rescore, pb.RescoreRequest(lists=[make_list_message()]), metadata=metadata
        )
    else:
        requests = iter([pb.RescoreStreamRequest(lists=[make_list_message()])])
        code, text, reason, _ = expect_error(stub.RescoreStream, requests, metadata=metadata)
    assert (code, reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in text
    assert "my-id.1" in text
    logged = capfd.readouterr().out
    assert "secret path" in logged
    assert "my-id.1" in logged
    monkeypatch.undo()
    assert stub.Rescore(pb.RescoreRequest(lists=[make_list_message()])).lists[0].status.code == 0


def test_replaces_a_request_id_that_could_forge_a_log_line(stub, server):
    forged = (("x-request-id", "x injected"),)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(pb.RescoreRequest(weights_name="other"), metadata=forged)
    info = ErrorInfo()
    rpc_status.from_call(caught.value).details[0].Unpack(info)
    assert len(info.metadata["request_id"]) == 32


def test_full_server_refuses_calls_but_not_health_checks(stub, channel, paused):
    full = pb.RescoreRequest(lists=[make_list_message()] * 4)
    waiting = [stub.Rescore.future(full) for _ in range(2)]
    wait_until(lambda: paused.in_flight == 8)
    code, text, reason, _ = expect_error(stub.Rescore, pb.RescoreRequest(lists=[make_list_message()]))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert "8 lists are in flight" in text
    assert HealthStub(channel).Check(HealthCheckRequest(), timeout=5).status == SERVING
    # A stream waits instead of being refused.
    stream = stub.RescoreStream(iter([pb.RescoreStreamRequest(lists=[make_list_message()] * 4)]))
    paused.scorer.gate.set()
    assert len(next(stream).lists) == 4
    assert all(len(call.result().lists) == 4 for call in waiting)
    wait_until(lambda: paused.in_flight == 0)


def test_does_not_score_lists_of_cancelled_or_late_calls(stub, paused):
    request = pb.RescoreRequest(lists=[make_list_message()])
    running_call = stub.Rescore.future(request)
    assert paused.scorer.entered.wait(5)
    calls = paused.scorer.calls
    assert expect_error(stub.Rescore, request, timeout=0.2)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    cancelled = stub.Rescore.future(request)
    wait_until(lambda: paused.in_flight == 2)
    cancelled.cancel()
    wait_until(lambda: paused.in_flight == 1)
    paused.scorer.gate.set()
    assert running_call.result().lists[0].status.code == 0
    stub.Rescore(request)
    assert paused.scorer.calls == calls + 1


@pytest.mark.parametrize("method", [RESCORE, RESCORE_STREAM])
def test_refused_requests_do_not_stay_in_memory(method, server):
    requests = {RESCORE: pb.RescoreRequest, RESCORE_STREAM: pb.RescoreStreamRequest}[method]
    data = requests(model="missing", lists=[make_list_message()]).SerializeToString()

    def count() -> int:
        return sum(type(thing) is requests for thing in gc.get_objects())

    gc.collect()
    gc.disable()  # the server collects rarely
    try:
        before = count()
        with grpc.insecure_channel(server.target) as channel:
            for _ in range(100):
                with pytest.raises(grpc.RpcError) as caught:
                    list(channel.stream_stream(method)(iter([data]), timeout=10))
                assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        wait_until(lambda: count() - before < 40)  # the last ones of each accepting task may stay
    finally:
        gc.enable()


def test_refusals_do_not_hold_the_memory_of_answers(ngram_bundle):
    """Each held 16 MiB until its status was sent, so that the fourth of a client at a time was refused."""
    invalid = pb.RescoreRequest(lists=[make_list_message()], weights_name="missing")

    with run_server(ngram_bundle) as server, grpc.insecure_channel(server.target) as channel:
        stub = RescorerServiceStub(channel)
        calls = [stub.Rescore.future(invalid, timeout=30) for _ in range(200)]
        assert {call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}
