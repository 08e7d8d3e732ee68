"""Batching over loopback: every admitted list is answered exactly once, with the library's scores.

Only an n-gram model scores here, so that no test has to import torch.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_status import rpc_status

from rescorer import Hypothesis, NBestList, Rescorer
from rescorer.errors import Overloaded
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.status import error_from_status
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.workers.model_host import WARM_UP
from rescorer.types import Weights
from tests.support.servers import run_server, wait_until
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

WORDS = ("the", "cat", "sat", "on", "mat", "zebra", "qqq")
TOO_LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
INTERNAL, UNAVAILABLE = grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    weights = Weights("default", {"acoustic": 1.0}, {"mixture": 2.0}, 0.1, -1.0, {"ngram": 1.0})
    return write_bundle(tmp_path_factory.mktemp("ngram"), weights, neural=False)


@pytest.fixture(scope="module")
def library(folder):
    """The same models, used through the library."""
    return Rescorer.load(folder)


def make_list(name: str, rng: random.Random, n: int = 4) -> NBestList:
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(0, 6))) for _ in range(n)]
    hypotheses = tuple(Hypothesis(text, partial=rng.random() < 0.1) for text in texts)
    context = " ".join(rng.choices(WORDS, k=rng.choice([0, 0, 2])))
    return NBestList(name, hypotheses, {"acoustic": tuple(rng.uniform(-9, 0) for _ in texts)}, context)


def make_request(*lists: NBestList, **fields) -> pb.RescoreRequest:
    return pb.RescoreRequest(lists=[list_to_proto(nbest) for nbest in lists], **fields)


def assert_scored(answer: pb.RescoredList, expected) -> None:
    assert (answer.id, answer.status.code) == (expected.id, 0)
    for actual, hypothesis in zip(answer.hypotheses, expected.hypotheses, strict=True):
        assert actual.original_rank - 1 == hypothesis.original_rank
        assert actual.total == pytest.approx(hypothesis.total, abs=1e-9)
        assert dict(actual.components) == pytest.approx(dict(hypothesis.components), abs=1e-9)


def connect(server) -> tuple[grpc.Channel, RescorerServiceStub]:
    # By default channels of one process share a connection, which the server regards as one client.
    channel = grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
    return channel, RescorerServiceStub(channel)


@pytest.fixture
def server_and_stub(folder):
    with run_server(folder, max_words=20, max_batch_tokens=60) as server:
        channel, stub = connect(server)
        yield server, stub
        server.scorer.gate.set()
        channel.close()


def test_answers_thousands_of_calls_with_some_cancelled_or_late(folder, library):
    lists = [make_list(f"u{i}", random.Random(i)) for i in range(50)]
    expected = {rescored.id: rescored for rescored in library.rescore(lists)}
    outcomes: list[str] = []

    def make_calls(seed: int) -> None:
        rng = random.Random(seed)
        channel, stub = connect(server)
        with channel:
            for _ in range(250):
                chosen = rng.choices(lists, k=rng.choice([1, 1, 1, 8]))
                kind = rng.choice(["normal", "normal", "normal", "late", "cancelled"])
                call = stub.Rescore.future(make_request(*chosen), timeout=0.002 if kind == "late" else 60)
                if kind == "cancelled":
                    time.sleep(rng.uniform(0, 0.003))
                    call.cancel()
                try:
                    answers = call.result().lists
                except grpc.FutureCancelledError:
                    assert kind == "cancelled"
                except grpc.RpcError as error:
                    if kind != "late" or error.code() not in TOO_LATE:
                        raise
                else:
                    assert len(answers) == len(chosen)
                    for answer, sent in zip(answers, chosen, strict=True):
                        assert_scored(answer, expected[sent.id])
                outcomes.append(kind)

    with run_server(folder, max_words=20, max_batch_tokens=100) as server, ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(make_calls, seed) for seed in range(8)]:
            future.result()
        wait_until(lambda: server.in_flight == 0)
        assert server.server.admission.tokens.held == 0
    assert len(outcomes) == 2000


def test_splits_a_list_longer_than_a_batch(server_and_stub, library):
    server, stub = server_and_stub
    lists = [make_list("long", random.Random(1), n=60), make_list("short", random.Random(2))]
    calls = server.scorer.calls
    answers = stub.Rescore(make_request(*lists)).lists
    for answer, expected in zip(answers, library.rescore(lists), strict=True):
        assert_scored(answer, expected)
    assert server.scorer.calls - calls > 2
    texts = [hypothesis.text for hypothesis in lists[0].hypotheses]
    scores = stub.ScoreText(pb.ScoreTextRequest(texts=texts, context="the cat")).scores
    for actual, expected in zip(scores, library.score_text(texts, "the cat"), strict=True):
        assert list(actual.words) == list(expected.words)
        mixture = list(actual.log_probs["mixture"].values)
        assert mixture == pytest.approx(list(expected.log_probs["mixture"]))


def test_lists_that_arrive_during_scoring_form_one_batch(server_and_stub):
    server, stub = server_and_stub
    server.scorer.gate.clear()
    server.scorer.entered.clear()
    first = [stub.Rescore.future(make_request(make_list("first", random.Random(0)))) for _ in range(2)]
    assert server.scorer.entered.wait(5)
    wait_until(lambda: server.in_flight == 2)
    time.sleep(0.1)  # one batch is being scored, the next one is prepared
    calls = server.scorer.calls
    tiny = NBestList("tiny", (Hypothesis("the"),), {"acoustic": (-1.0,)})
    later = [stub.Rescore.future(make_request(tiny)) for _ in range(20)]
    wait_until(lambda: server.in_flight == 22)
    server.scorer.gate.set()
    assert all(len(call.result().lists) == 1 for call in first + later)
    assert server.scorer.calls - calls <= 4


def test_late_arrivals_join_the_prepared_batch(server_and_stub, library):
    server, stub = server_and_stub
    server.scorer.gate.clear()
    server.scorer.entered.clear()
    lists = [make_list(f"u{i}", random.Random(i)) for i in range(3)]
    scored = stub.Rescore.future(make_request(lists[0]))
    assert server.scorer.entered.wait(5)
    prepared = stub.Rescore.future(make_request(lists[1]))
    wait_until(lambda: server.in_flight == 2 and not server.server.batcher.n_waiting)
    late = stub.Rescore.future(make_request(lists[2]))
    wait_until(lambda: server.server.batcher.n_waiting == 1)
    calls = server.scorer.calls
    server.scorer.gate.set()
    for call, expected in zip((scored, prepared, late), library.rescore(lists), strict=True):
        assert_scored(call.result().lists[0], expected)
    assert server.scorer.calls - calls == 1


def test_list_that_breaks_scoring_fails_alone(server_and_stub, library):
    _, stub = server_and_stub
    good = [make_list(f"u{i}", random.Random(i)) for i in range(5)]
    poison = NBestList("bad", (Hypothesis("the poison"),), {"acoustic": (-1.0,)})
    answers = stub.Rescore(make_request(*good[:2], poison, *good[2:])).lists
    assert answers[2].status.code == INTERNAL.value[0]
    assert "poisoned" not in str(answers[2])
    for answer, expected in zip([*answers[:2], *answers[3:]], library.rescore(good), strict=True):
        assert_scored(answer, expected)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(make_request(poison))
    assert caught.value.code() == INTERNAL


def test_lists_of_a_failed_batch_wait_only_once_for_other_batches(server_and_stub, monkeypatch):
    server, stub = server_and_stub
    batches: list[set[str]] = []
    score = server.scorer.score

    def record_and_score(trie, only=()):
        if trie is not WARM_UP:
            batches.append(set(trie.words))
        return score(trie, only)

    monkeypatch.setattr(server.scorer, "score", record_and_score)
    words = ("mat", "poison", "sat", "on")
    lists = [NBestList(word, (Hypothesis(word),), {"acoustic": (-1.0,)}) for word in words]
    long = NBestList("long", (Hypothesis("cat " * 19),) * 3, {"acoustic": (-1.0,) * 3})  # a batch of its own
    server.scorer.gate.clear()
    server.scorer.entered.clear()
    first = stub.Rescore.future(make_request(make_list("first", random.Random(0))))
    assert server.scorer.entered.wait(5)
    failing = stub.Rescore.future(make_request(*lists))
    wait_until(lambda: server.in_flight == 5)
    other = stub.Rescore.future(make_request(long, long))
    wait_until(lambda: server.in_flight == 7)
    server.scorer.gate.set()
    assert [answer.status.code for answer in failing.result().lists] == [0, INTERNAL.value[0], 0, 0]
    assert (len(first.result().lists), len(other.result().lists)) == (1, 2)
    # The other call is two batches; the four lists wait for one of them, once.
    assert batches[1:] == [set(words), {"cat"}, *({word} for word in words), {"cat"}]


def test_health_reports_a_broken_device(folder):
    with run_server(folder) as server:
        channel, stub = connect(server)
        with channel:
            server.scorer.broken = True
            call = stub.Rescore.future(make_request(make_list("u", random.Random(0))), timeout=30)
            wait_until(server.server.broken.done)
            health = HealthStub(channel)
            wait_until(lambda: health.Check(HealthCheckRequest()).status == HealthCheckResponse.NOT_SERVING)
            assert call.exception().code() == UNAVAILABLE


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


def reason_to_refuse(stub: RescorerServiceStub, request: pb.RescoreRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(request)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    reasons = ("expected at most 8 (", "other clients")
    return next(reason for reason in reasons if reason in caught.value.details())


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


def test_workers_score_like_the_library_even_if_one_is_killed(folder, library):
    lists = [make_list(f"u{i}", random.Random(i)) for i in range(30)]
    expected = library.rescore(lists)
    stop = threading.Event()

    def kill_workers() -> None:
        for worker in itertools.cycle(server.server.pool.workers):
            if stop.wait(2.0):
                return
            for pid in worker.pids:
                os.kill(pid, signal.SIGKILL)

    with run_server(folder, workers=2, max_words=20, max_batch_tokens=100) as server:
        channel, stub = connect(server)
        with channel, ThreadPoolExecutor(3) as pool:
            killing = pool.submit(kill_workers)
            until_s = time.monotonic() + 8
            answered = 0
            while time.monotonic() < until_s:
                for answer, rescored in zip(stub.Rescore(make_request(*lists)).lists, expected, strict=True):
                    assert_scored(answer, rescored)
                answered += 1
            stop.set()
            killing.result()
    assert answered > 5
