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
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer import Hypothesis, NBestList
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.workers.host import WARM_UP
from tests.support.random_lists import assert_scored, connect, make_list, make_request
from tests.support.servers import run_server, wait_until

pytestmark = pytest.mark.slow

TOO_LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
INTERNAL, UNAVAILABLE = grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE


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
        assert server.server.engine.admission.tokens.held == 0
    assert len(outcomes) == 2000


def test_splits_a_list_longer_than_a_batch(server_and_stub, library):
    server, stub = server_and_stub
    lists = [make_list("long", random.Random(1), n=120), make_list("short", random.Random(2))]
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
    wait_until(lambda: server.in_flight == 2 and not server.server.engine.batcher.n_waiting)
    late = stub.Rescore.future(make_request(lists[2]))
    wait_until(lambda: server.server.engine.batcher.n_waiting == 1)
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

    def record_and_score(trie, only=(), encoders=None, *, surface=False, words=()):
        if trie is not WARM_UP:
            batches.append(set(trie.words))
        return score(trie, only, encoders, surface=surface, words=words)

    monkeypatch.setattr(server.scorer, "score", record_and_score)
    words = ("mat", "poison", "sat", "on")
    lists = [NBestList(word, (Hypothesis(word),), {"acoustic": (-1.0,)}) for word in words]
    long = NBestList("long", (Hypothesis("cat " * 19),) * 6, {"acoustic": (-1.0,) * 6})  # a batch of its own
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
    # The other call is two long batches, which the four lists may overtake after their own has failed.
    singles = [{word} for word in words]
    assert batches[1] == set(words)
    assert [batch for batch in batches[2:] if batch != {"cat"}] == singles
    assert batches.count({"cat"}) == 2


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


def test_workers_score_like_the_library_even_if_one_is_killed(folder, library):
    lists = [make_list(f"u{i}", random.Random(i)) for i in range(30)]
    expected = library.rescore(lists)
    stop = threading.Event()

    def kill_workers() -> None:
        for worker in itertools.cycle(server.server.pool.workers):
            if stop.wait(2.0):
                return
            if server.server.pool.n_alive < 2:
                continue  # a busy machine takes longer to start one
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


def test_lists_that_wait_for_a_lost_model_fail_at_once(server_and_stub):
    server, stub = server_and_stub
    server.scorer.gate.clear()
    server.scorer.entered.clear()
    calls = [
        stub.Rescore.future(make_request(make_list(f"u{i}", random.Random(i))), timeout=60) for i in (1, 2)
    ]
    assert server.scorer.entered.wait(10)
    wait_until(lambda: server.in_flight == 2)
    server.loop.call_soon_threadsafe(server.server.pool.on_lost, server.server.models.version().label)
    for call in calls:
        assert call.exception().code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "cannot be loaded again" in call.exception().details()
    server.scorer.gate.set()
    assert stub.Rescore(make_request(make_list("u3", random.Random(3))), timeout=60).lists[0].id == "u3"
