"""A server with too much to do refuses calls, shares its capacity among clients, and uses fallbacks."""

from __future__ import annotations

import random
import time

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

from rescorer.errors import Overloaded
from rescorer.protocol.messages import error_from_status
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.api import rescoring
from tests.support.random_lists import assert_scored, connect, make_list, make_request
from tests.support.servers import run_server, wait_until

pytestmark = pytest.mark.slow


def test_refusal_is_immediate_and_says_when_to_retry(folder):
    with run_server(folder, max_in_flight_lists=4, max_lists=4) as server:
        channel, stub = connect(server)
        with channel:
            server.scorer.gate.clear()
            waiting = [stub.Rescore.future(make_request(make_list("u", random.Random(0)))) for _ in range(4)]
            wait_until(lambda: server.in_flight == 4)
            began = time.monotonic()
            with pytest.raises(grpc.RpcError) as caught:
                stub.Rescore(make_request(make_list("u", random.Random(0))))
            assert time.monotonic() - began < 5
            trailing = dict(caught.value.trailing_metadata())
            assert int(trailing["grpc-retry-pushback-ms"]) >= 40
            status = rpc_status.from_call(caught.value)
            assert any(detail.Is(RetryInfo.DESCRIPTOR) for detail in status.details)
            error = error_from_status(status)
            assert isinstance(error, Overloaded)
            assert error.retry_after_s >= 0.04
            server.scorer.gate.set()
            assert all(call.result().lists for call in waiting)


def test_flooding_client_leaves_room_for_another(folder):
    with run_server(folder, max_in_flight_lists=8, max_lists=8) as server:
        (one, flooding), (other, modest) = connect(server), connect(server)
        with one, other:
            server.scorer.gate.clear()
            request = make_request(*[make_list("u", random.Random(0))] * 4)
            calls = [flooding.Rescore.future(request) for _ in range(2)]
            wait_until(lambda: server.in_flight == 8)
            assert reason_to_refuse(modest, request) == "expected at most 8 ("
            server.scorer.gate.set()
            assert [len(call.result().lists) for call in calls] == [4, 4]
            wait_until(lambda: server.in_flight == 0)
            server.scorer.gate.clear()
            calls = [flooding.Rescore.future(request)]
            wait_until(lambda: server.in_flight == 4)
            calls.append(modest.Rescore.future(make_request(*[make_list("v", random.Random(0))] * 3)))
            wait_until(lambda: server.in_flight == 7)
            assert (
                reason_to_refuse(flooding, make_request(make_list("u", random.Random(0)))) == "other clients"
            )
            server.scorer.gate.set()
            assert [len(call.result().lists) for call in calls] == [4, 3]


def test_lists_without_room_are_refused_before_anything_is_computed_for_them(folder, monkeypatch):
    with run_server(folder, max_in_flight_lists=4, max_lists=4) as server:
        channel, stub = connect(server)
        with channel:
            server.scorer.gate.clear()
            request = make_request(*[make_list("u", random.Random(0))] * 4)
            waiting = stub.Rescore.future(request)
            wait_until(lambda: server.in_flight == 4)
            checked = []
            monkeypatch.setattr(rescoring, "check_request", lambda *_: checked.append(1) or 0)
            with pytest.raises(grpc.RpcError, match="4 lists are in flight and 4 more were requested"):
                stub.Rescore(request)
            assert not checked
            rejected = server.server.metrics.registry.get_sample_value("rescorer_rejected_lists_total")
            assert rejected == 4
            request.fallback = pb.FALLBACK_FIRST_PASS
            answers = stub.Rescore(request, timeout=4).lists  # else it waits for the n-gram model for 40 s
            assert all(answer.degradation for answer in answers)
            assert checked
            server.scorer.gate.set()
            assert len(waiting.result().lists) == 4


def reason_to_refuse(stub: RescorerServiceStub, request: pb.RescoreRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(request)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    reasons = ("expected at most 8 (", "other clients")
    return next(reason for reason in reasons if reason in caught.value.details())


def test_without_workers_a_call_is_told_why_or_gets_the_fallback_that_it_permits(folder):
    with run_server(folder) as server:
        server.server.engine.admission._ready_in_s = lambda: 60.0
        channel, stub = connect(server)
        with channel:
            nbest = make_list("u", random.Random(0))
            with pytest.raises(grpc.RpcError, match="they are being loaded again") as caught:
                stub.Rescore(make_request(nbest), timeout=5)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            answer = stub.Rescore(make_request(nbest, fallback=pb.FALLBACK_FIRST_PASS), timeout=5).lists[0]
            assert answer.degradation


def test_late_call_gets_the_fallback_that_it_permits(server_and_stub, library):
    server, stub = server_and_stub
    nbest = make_list("u", random.Random(3))
    server.scorer.gate.clear()
    held = stub.Rescore.future(make_request(nbest))
    answer = stub.Rescore(make_request(nbest, fallback=pb.FALLBACK_FIRST_PASS), timeout=2).lists[0]
    assert answer.degradation == pb.DEGRADATION_FIRST_PASS
    assert [hypothesis.original_rank for hypothesis in answer.hypotheses] == [1, 2, 3, 4]
    assert set(answer.hypotheses[0].components) == {"acoustic", "words"}
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(make_request(nbest, fallback=pb.FALLBACK_NGRAM), timeout=1)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    server.scorer.gate.set()
    assert held.result().lists[0].degradation == pb.DEGRADATION_UNSPECIFIED
    assert_scored(held.result().lists[0], library.rescore([nbest])[0])


def test_full_server_falls_back_to_the_ngram_model_if_permitted(folder, library):
    with run_server(folder, max_in_flight_lists=2, max_lists=2) as server:
        channel, stub = connect(server)
        with channel:
            nbest = make_list("u", random.Random(3))
            server.scorer.gate.clear()
            held = stub.Rescore.future(make_request(nbest, nbest))
            wait_until(lambda: server.in_flight == 2)
            degraded = stub.Rescore.future(make_request(nbest, fallback=pb.FALLBACK_NGRAM))
            time.sleep(0.1)
            server.scorer.gate.set()
            answer = degraded.result().lists[0]
            assert answer.degradation == pb.DEGRADATION_NGRAM
            assert {"ngram", "mixture"} <= set(answer.hypotheses[0].components)
            answer.degradation = pb.DEGRADATION_UNSPECIFIED
            assert_scored(answer, library.rescore([nbest])[0])  # the n-gram model is the only one
            assert len(held.result().lists) == 2
