"""Batches over loopback: every accepted list is answered once with the library's scores, come what may.

An n-gram alone scores here, so that no test waits for torch.
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
def plain(folder):
    """The library."""
    return Rescorer.load(folder)


def a_list(name: str, rng: random.Random, n: int = 4) -> NBestList:
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(0, 6))) for _ in range(n)]
    hypotheses = tuple(Hypothesis(text, partial=rng.random() < 0.1) for text in texts)
    context = " ".join(rng.choices(WORDS, k=rng.choice([0, 0, 2])))
    return NBestList(name, hypotheses, {"acoustic": tuple(rng.uniform(-9, 0) for _ in texts)}, context)


def request_of(*lists: NBestList, **fields) -> pb.RescoreRequest:
    return pb.RescoreRequest(lists=[list_to_proto(each) for each in lists], **fields)


def assert_scored(answer: pb.RescoredList, wanted) -> None:
    assert (answer.id, answer.status.code) == (wanted.id, 0)
    assert [each.original_rank - 1 for each in answer.hypotheses] == [
        each.original_rank for each in wanted.hypotheses
    ]
    for found, each in zip(answer.hypotheses, wanted.hypotheses, strict=True):
        assert found.total == pytest.approx(each.total, abs=1e-9)
        assert dict(found.components) == pytest.approx(dict(each.components), abs=1e-9)


def stub_of(server) -> tuple[grpc.Channel, RescorerServiceStub]:
    # Channels of one process share a connection unless they differ, and a connection is a client.
    channel = grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
    return channel, RescorerServiceStub(channel)


@pytest.fixture
def answering(folder):
    with run_server(folder, max_words=20, max_batch_tokens=60) as server:
        channel, stub = stub_of(server)
        yield server, stub
        server.scorer.gate.set()
        channel.close()


def test_thousands_of_calls_with_cancelled_and_late_ones_among_them(folder, plain):
    lists = [a_list(f"u{i}", random.Random(i)) for i in range(50)]
    wanted = {each.id: each for each in plain.rescore(lists)}
    outcomes: list[str] = []

    def caller(seed: int) -> None:
        rng = random.Random(seed)
        channel, stub = stub_of(server)
        with channel:
            for _ in range(250):
                some = rng.choices(lists, k=rng.choice([1, 1, 1, 8]))
                kind = rng.choice(["whole", "whole", "whole", "late", "cancelled"])
                call = stub.Rescore.future(request_of(*some), timeout=0.002 if kind == "late" else 60)
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
                    assert len(answers) == len(some)
                    for answer, sent in zip(answers, some, strict=True):
                        assert_scored(answer, wanted[sent.id])
                outcomes.append(kind)

    with run_server(folder, max_words=20, max_batch_tokens=100) as server, ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(caller, seed) for seed in range(8)]:
            each.result()
        wait_until(lambda: server.in_flight == 0)
        assert server.server.admission.tokens.held == 0
    assert len(outcomes) == 2000


def test_a_list_longer_than_a_batch_is_cut_and_put_together(answering, plain):
    server, stub = answering
    lists = [a_list("long", random.Random(1), n=60), a_list("short", random.Random(2))]
    calls = server.scorer.calls
    answers = stub.Rescore(request_of(*lists)).lists
    for answer, wanted in zip(answers, plain.rescore(lists), strict=True):
        assert_scored(answer, wanted)
    assert server.scorer.calls - calls > 2
    texts = [each.text for each in lists[0].hypotheses]
    scores = stub.ScoreText(pb.ScoreTextRequest(texts=texts, context="the cat")).scores
    for found, wanted in zip(scores, plain.score_text(texts, "the cat"), strict=True):
        assert list(found.words) == list(wanted.words)
        assert list(found.log_probs["mixture"].values) == pytest.approx(list(wanted.log_probs["mixture"]))


def test_lists_that_came_meanwhile_are_one_batch(answering):
    server, stub = answering
    server.scorer.gate.clear()
    server.scorer.entered.clear()
    first = [stub.Rescore.future(request_of(a_list("first", random.Random(0)))) for _ in range(2)]
    assert server.scorer.entered.wait(5)
    wait_until(lambda: server.in_flight == 2)
    time.sleep(0.1)  # one is being scored, one is made ready
    calls = server.scorer.calls
    tiny = NBestList("tiny", (Hypothesis("the"),), {"acoustic": (-1.0,)})
    later = [stub.Rescore.future(request_of(tiny)) for _ in range(20)]
    wait_until(lambda: server.in_flight == 22)
    server.scorer.gate.set()
    assert all(len(each.result().lists) == 1 for each in first + later)
    assert server.scorer.calls - calls <= 4


def test_what_comes_late_joins_the_batch_that_is_ready(answering, plain):
    server, stub = answering
    server.scorer.gate.clear()
    server.scorer.entered.clear()
    some = [a_list(f"u{i}", random.Random(i)) for i in range(3)]
    scored = stub.Rescore.future(request_of(some[0]))
    assert server.scorer.entered.wait(5)
    ready = stub.Rescore.future(request_of(some[1]))
    wait_until(lambda: server.in_flight == 2 and not server.server._batcher.n_waiting)
    late = stub.Rescore.future(request_of(some[2]))
    wait_until(lambda: server.server._batcher.n_waiting == 1)
    calls = server.scorer.calls
    server.scorer.gate.set()
    for answer, wanted in zip((scored, ready, late), plain.rescore(some), strict=True):
        assert_scored(answer.result().lists[0], wanted)
    assert server.scorer.calls - calls == 1


def test_a_poisonous_list_fails_alone(answering, plain):
    _, stub = answering
    good = [a_list(f"u{i}", random.Random(i)) for i in range(5)]
    poison = NBestList("bad", (Hypothesis("the poison"),), {"acoustic": (-1.0,)})
    answers = stub.Rescore(request_of(*good[:2], poison, *good[2:])).lists
    assert answers[2].status.code == INTERNAL.value[0]
    assert "poisoned" not in str(answers[2])
    for answer, wanted in zip([*answers[:2], *answers[3:]], plain.rescore(good), strict=True):
        assert_scored(answer, wanted)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(request_of(poison))
    assert caught.value.code() == INTERNAL


def test_lists_of_a_failed_batch_do_not_each_wait_for_other_batches(answering, monkeypatch):
    server, stub = answering
    seen: list[set[str]] = []
    scores = server.scorer.score

    def watched(trie, only=()):
        if trie is not WARM_UP:
            seen.append(set(trie.words))
        return scores(trie, only)

    monkeypatch.setattr(server.scorer, "score", watched)
    words = ("mat", "poison", "sat", "on")
    some = [NBestList(word, (Hypothesis(word),), {"acoustic": (-1.0,)}) for word in words]
    long = NBestList("long", (Hypothesis("cat " * 19),) * 3, {"acoustic": (-1.0,) * 3})  # a batch of its own
    server.scorer.gate.clear()
    server.scorer.entered.clear()
    first = stub.Rescore.future(request_of(a_list("first", random.Random(0))))
    assert server.scorer.entered.wait(5)
    failing = stub.Rescore.future(request_of(*some))
    wait_until(lambda: server.in_flight == 5)
    other = stub.Rescore.future(request_of(long, long))
    wait_until(lambda: server.in_flight == 7)
    server.scorer.gate.set()
    assert [each.status.code for each in failing.result().lists] == [0, INTERNAL.value[0], 0, 0]
    assert (len(first.result().lists), len(other.result().lists)) == (1, 2)
    # Those of the other call are two batches; the four wait for one of them, once.
    assert seen[1:] == [set(words), {"cat"}, *({each} for each in words), {"cat"}]


def test_a_broken_device_is_told_by_health(folder):
    with run_server(folder) as server:
        channel, stub = stub_of(server)
        with channel:
            server.scorer.broken = True
            call = stub.Rescore.future(request_of(a_list("u", random.Random(0))), timeout=30)
            wait_until(server.server.broken.done)
            health = HealthStub(channel)
            wait_until(lambda: health.Check(HealthCheckRequest()).status == HealthCheckResponse.NOT_SERVING)
            assert call.exception().code() == UNAVAILABLE


def test_who_is_refused_hears_at_once_when_to_come_back(folder):
    with run_server(folder, max_in_flight_lists=4, max_lists=4) as server:
        channel, stub = stub_of(server)
        with channel:
            server.scorer.gate.clear()
            waiting = [stub.Rescore.future(request_of(a_list("u", random.Random(0)))) for _ in range(4)]
            wait_until(lambda: server.in_flight == 4)
            began = time.monotonic()
            with pytest.raises(grpc.RpcError) as caught:
                stub.Rescore(request_of(a_list("u", random.Random(0))))
            assert time.monotonic() - began < 5
            trailing = dict(caught.value.trailing_metadata())
            assert int(trailing["grpc-retry-pushback-ms"]) >= 40
            status = rpc_status.from_call(caught.value)
            assert any(each.Is(RetryInfo.DESCRIPTOR) for each in status.details)
            fault = error_from_status(status)
            assert isinstance(fault, Overloaded)
            assert fault.retry_after_s >= 0.04
            server.scorer.gate.set()
            assert all(each.result().lists for each in waiting)


def test_one_client_that_floods_leaves_room_for_another(folder):
    with run_server(folder, max_in_flight_lists=8, max_lists=8) as server:
        (one, flooding), (other, modest) = stub_of(server), stub_of(server)
        with one, other:
            server.scorer.gate.clear()
            some = request_of(*[a_list("u", random.Random(0))] * 4)
            calls = [flooding.Rescore.future(some) for _ in range(2)]
            wait_until(lambda: server.in_flight == 8)
            assert refused_reason(modest, some) == "expected at most 8 ("
            server.scorer.gate.set()
            assert [len(each.result().lists) for each in calls] == [4, 4]
            wait_until(lambda: server.in_flight == 0)
            server.scorer.gate.clear()
            calls = [flooding.Rescore.future(some)]
            wait_until(lambda: server.in_flight == 4)
            calls.append(modest.Rescore.future(request_of(*[a_list("v", random.Random(0))] * 3)))
            wait_until(lambda: server.in_flight == 7)
            assert refused_reason(flooding, request_of(a_list("u", random.Random(0)))) == "other clients"
            server.scorer.gate.set()
            assert [len(each.result().lists) for each in calls] == [4, 3]


def refused_reason(stub: RescorerServiceStub, request: pb.RescoreRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(request)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return next(each for each in ("expected at most 8 (", "other clients") if each in caught.value.details())


def test_a_caller_may_take_less_than_an_error(answering, plain):
    server, stub = answering
    some = a_list("u", random.Random(3))
    server.scorer.gate.clear()
    held = stub.Rescore.future(request_of(some))
    answer = stub.Rescore(request_of(some, fallback=pb.FALLBACK_FIRST_PASS), timeout=2).lists[0]
    assert answer.degradation == pb.DEGRADATION_FIRST_PASS
    assert [each.original_rank for each in answer.hypotheses] == [1, 2, 3, 4]
    assert set(answer.hypotheses[0].components) == {"acoustic", "words"}
    with pytest.raises(grpc.RpcError) as caught:
        stub.Rescore(request_of(some, fallback=pb.FALLBACK_NGRAM), timeout=1)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    server.scorer.gate.set()
    assert held.result().lists[0].degradation == pb.DEGRADATION_UNSPECIFIED
    assert_scored(held.result().lists[0], plain.rescore([some])[0])


def test_a_full_server_answers_by_the_ngram_whom_that_is_enough(folder, plain):
    with run_server(folder, max_in_flight_lists=2, max_lists=2) as server:
        channel, stub = stub_of(server)
        with channel:
            some = a_list("u", random.Random(3))
            server.scorer.gate.clear()
            held = stub.Rescore.future(request_of(some, some))
            wait_until(lambda: server.in_flight == 2)
            less = stub.Rescore.future(request_of(some, fallback=pb.FALLBACK_NGRAM))
            time.sleep(0.1)
            server.scorer.gate.set()
            answer = less.result().lists[0]
            assert answer.degradation == pb.DEGRADATION_NGRAM
            assert {"ngram", "mixture"} <= set(answer.hypotheses[0].components)
            answer.degradation = pb.DEGRADATION_UNSPECIFIED
            assert_scored(answer, plain.rescore([some])[0])  # here the n-gram is all there is
            assert len(held.result().lists) == 2


def test_scoring_processes_say_what_the_library_says_also_when_one_is_killed(folder, plain):
    lists = [a_list(f"u{i}", random.Random(i)) for i in range(30)]
    wanted = plain.rescore(lists)
    stop = threading.Event()

    def killer() -> None:
        for worker in itertools.cycle(server.server.pool.workers):
            if stop.wait(2.0):
                return
            os.kill(worker.pid, signal.SIGKILL)

    with run_server(folder, workers=2, max_words=20, max_batch_tokens=100) as server:
        channel, stub = stub_of(server)
        with channel, ThreadPoolExecutor(3) as pool:
            killing = pool.submit(killer)
            until_s = time.monotonic() + 8
            answered = 0
            while time.monotonic() < until_s:
                for answer, each in zip(stub.Rescore(request_of(*lists)).lists, wanted, strict=True):
                    assert_scored(answer, each)
                answered += 1
            stop.set()
            killing.result()
    assert answered > 5
