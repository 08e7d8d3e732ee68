"""Short batches are scored between steps of long ones, and what nobody waits for ends at its next step."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import Hypothesis, NBestList
from rescorer.frames import ScoreJob, WorkerScores
from rescorer.pipeline import TrieScorer
from rescorer.runtime import ContextWords, pause
from rescorer.scoring.batch import Part
from rescorer.service.engine.engine import Batcher, Demand, WorkItem
from rescorer.service.engine.offloader import Offloader
from rescorer.service.workers.host import ScoringThread
from rescorer.service.workers.pool import WorkerPool
from rescorer.trie import EdgeScores
from tests.support.random_lists import connect, make_request
from tests.support.servers import ControlledScorer, run_server, wait_until

SETTINGS = {"max_words": 20, "max_batch_tokens": 200}  # a batch of more than 50 is long
LONG = NBestList(
    "long", tuple(Hypothesis(f"slow {'cat ' * n}") for n in range(1, 15)), {"acoustic": (-1.0,) * 14}
)
SLOW = NBestList("slow", (Hypothesis("slow " + "cat " * 8),), {"acoustic": (-1.0,)})
QUICK = NBestList("quick", (Hypothesis("the cat"),), {"acoustic": (-1.0,)})


class SteppingScorer(ControlledScorer):
    """Scores batches with the word "slow" in steps, for as long as the gate is closed."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.ended = threading.Event()

    def score(self, trie, only=(), encoders=None, *, surface=False, words=()):
        try:
            if "slow" in trie.words:
                self.entered.set()
                while not self.gate.is_set():
                    pause()
                    time.sleep(0.001)
            return TrieScorer.score(self, trie, only, encoders, surface=surface)
        finally:
            if "slow" in trie.words:
                self.ended.set()


@pytest.fixture
def server(folder):
    with run_server(folder, load_scorer=SteppingScorer.load, **SETTINGS) as server:
        server.scorer.gate.clear()
        yield server
        server.scorer.gate.set()


def test_a_short_list_is_answered_while_a_long_one_is_scored(server):
    (one, long), (other, short) = connect(server), connect(server)
    with one, other:
        held = long.Rescore.future(make_request(LONG, LONG, LONG))
        assert server.scorer.entered.wait(10)
        assert len(short.Rescore(make_request(QUICK), timeout=10).lists) == 1
        assert not held.done()
        server.scorer.gate.set()
        assert len(held.result().lists) == 3


def test_a_newcomer_is_answered_while_the_batches_of_another_client_are_full(server):
    (one, flooding), (other, modest) = connect(server), connect(server)
    with one, other:
        held = [flooding.Rescore.future(make_request(LONG))]
        assert server.scorer.entered.wait(10)  # the batch is enough to make the other client a light one
        held += [flooding.Rescore.future(make_request(*[SLOW] * 10)) for _ in range(6)]  # three batches
        own = flooding.Rescore.future(make_request(QUICK))
        wait_until(lambda: server.in_flight == 62)
        for _ in range(3):
            assert len(modest.Rescore(make_request(QUICK), timeout=10).lists) == 1
        assert not own.done()
        server.scorer.gate.set()
        assert all(call.result().lists for call in (*held, own))


def test_a_newcomer_is_answered_while_the_batches_of_many_clients_are_full(server):
    with ExitStack() as stack:
        stubs = []
        for _ in range(8):
            channel, stub = connect(server)
            stack.enter_context(channel)
            stubs.append(stub)
        *flooding, one, other = stubs
        held = [stub.Rescore.future(make_request(*[SLOW] * 10)) for stub in flooding]
        wait_until(lambda: server.in_flight == 60)
        assert server.scorer.entered.wait(10)
        for modest in (one, other):  # as early as the flooding clients whose turn it is
            assert len(modest.Rescore(make_request(QUICK), timeout=10).lists) == 1
        assert not any(call.done() for call in held)
        server.scorer.gate.set()
        assert all(call.result().lists for call in held)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100), st.booleans()), max_size=30),
    st.sampled_from("abc"),
)
def test_typical_work_is_that_of_the_client_of_an_average_token(changes, client):
    demand, work = Demand(), Counter()
    for name, cost, leaves in changes:
        if leaves:
            cost = -min(cost, work[name])
        demand.add(name, cost)
        work[name] += cost
    tokens = [name for name, cost in work.items() for _ in range(cost)]
    assert demand.typical == pytest.approx(sum(work[name] for name in tokens) / max(1, len(tokens)))
    assert demand.of(client) == work[client]


@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_scoring_ends_when_its_last_caller_has_gone(server, how):
    channel, stub = connect(server)
    with channel:
        for timeout_s in [5, 15, 45] if how == "late" else [60]:
            calls = [stub.Rescore.future(make_request(LONG), timeout=timeout_s) for _ in range(2)]
            if server.scorer.entered.wait(timeout_s):  # otherwise the machine is too busy for this deadline
                break
        if how == "cancelled":
            for call in calls:
                call.cancel()
        assert server.scorer.ended.wait(60)
        assert len(stub.Rescore(make_request(QUICK), timeout=10).lists) == 1
        failures = server.server.metrics.registry.get_sample_value("rescorer_failed_batches_total")
        assert failures == 0


class SteppingModels:
    """Models whose long jobs take 5 steps of 0.4 s each, and short ones 1 s, by their own clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.entered, self.gate = threading.Event(), threading.Event()

    def score(self, job, on_pause):
        if job.overtakes:
            self.now += 1.0
            self.log.append(job.trie)
            return job.trie
        self.entered.set()
        self.gate.wait(10)
        for step in range(5):
            on_pause()
            self.now += 0.4
            self.log.append(f"step {step}")
        return job.trie


@pytest.mark.parametrize("overtaken_s", [0.0, 8.0])
def test_the_pace_of_a_batch_does_not_count_what_has_overtaken_it(library, monkeypatch, overtaken_s):
    now, paces = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Overtaken:
        alive, is_stopped, pids, labels = True, False, (), ()

        async def score(self, job):
            now[0] += 2.0 + overtaken_s
            zeros = np.zeros(job.trie.n_edges)
            scores = {"ngram": EdgeScores(zeros, zeros > 0)}
            return WorkerScores(scores, {"n-gram": 2.0}, ContextWords(), {})

    async def score():
        pool = WorkerPool([Overtaken()], print)
        pool.open()
        offloader = Offloader(None)
        batcher = Batcher(
            pool, offloader, 1000, on_scored=lambda items, scored, seconds: paces.append(seconds)
        )
        batcher.start()
        ranker = library.ranker
        part = Part(ranker.prepare(QUICK, ranker.bind()), range(1), 3)
        item = WorkItem(part, "m/1", math.inf)
        batcher.put(item, "client")
        await item.future
        await batcher.stop()

    asyncio.run(score())
    assert paces == [2.0]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_short_list_of_a_light_client_is_in_no_batch_of_a_heavy_one(library, place):
    """Even if the work of both came while nothing was being scored."""
    jobs = []

    class Recording:
        alive, is_stopped, pids, labels = True, False, (), ()

        async def score(self, job):
            jobs.append(("slow" in job.trie.words, job.overtakes))
            zeros = np.zeros(job.trie.n_edges)
            return WorkerScores({"ngram": EdgeScores(zeros, zeros > 0)}, {"n-gram": 1.0}, ContextWords(), {})

    async def score():
        pool = WorkerPool([Recording()], print)
        pool.open()
        batcher = Batcher(pool, Offloader(None), 1000)
        ranker, items = library.ranker, []
        for index in range(7):
            nbest, cost, client = (QUICK, 3, "light") if index == place else (SLOW, 125, "heavy")
            part = Part(ranker.prepare(nbest, ranker.bind()), range(1), cost)
            items.append(WorkItem(part, "m/1", math.inf))
            batcher.put(items[-1], client)
        batcher.start()
        await asyncio.gather(*(item.future for item in items))
        await batcher.stop()

    asyncio.run(score())
    assert sorted(jobs) == [(False, True), (True, False)]


def run_long_and_short(shorts, *, abandon=False):
    models = SteppingModels()

    async def run():
        scoring = ScoringThread(models, lambda: models.now)
        long = asyncio.create_task(scoring.score(ScoreJob("m/1", "long")))
        await asyncio.to_thread(models.entered.wait, 10)
        jobs = [asyncio.create_task(scoring.score(ScoreJob("m/1", name, overtakes=True))) for name in shorts]
        await asyncio.sleep(0)
        if abandon:
            long.cancel()
            await asyncio.sleep(0)
        models.gate.set()
        results = await asyncio.gather(long, *jobs, return_exceptions=True)
        scoring.close()
        return results

    return models.log, asyncio.run(run())


def test_short_jobs_get_half_of_the_time_of_a_long_one():
    log, results = run_long_and_short(["a", "b"])
    assert log == ["a", "step 0", "step 1", "step 2", "b", "step 3", "step 4"]
    assert results == ["long", "a", "b"]


def test_a_job_that_nobody_waits_for_ends_at_its_next_step():
    log, results = run_long_and_short(["a"], abandon=True)
    assert log == ["a"]
    assert isinstance(results[0], asyncio.CancelledError)


def test_a_worker_is_lent_to_one_short_batch_while_a_long_one_is_scored():
    class IdleWorker:
        alive, is_stopped, pids, labels = True, False, (), ()

    async def lend():
        pool = WorkerPool([IdleWorker()], print)
        pool.open()
        order = []

        async def short(name: str, finish: asyncio.Event) -> None:
            async with pool.acquire(overtakes=True):
                order.append(name)
                await finish.wait()

        async with pool.acquire():
            assert pool.n_overtakable == 1
            first, second = asyncio.Event(), asyncio.Event()
            tasks = [asyncio.create_task(short("a", first)), asyncio.create_task(short("b", second))]
            next_long = pool.acquire()  # ends when nothing refers to it
            other = asyncio.create_task(next_long.__aenter__())
            await asyncio.sleep(0.01)
            assert (order, pool.n_overtakable) == (["a"], 0)
            first.set()
            await tasks[0]
            await asyncio.sleep(0.01)
            assert order == ["a", "b"]
            assert not other.done()
        await other
        second.set()
        await tasks[1]
        assert pool.n_overtakable == 1  # of the other long batch
        await next_long.__aexit__(None, None, None)
        assert pool.n_overtakable == 0

    asyncio.run(lend())
