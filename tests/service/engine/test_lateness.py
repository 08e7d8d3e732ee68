"""Admitted calls are answered in time under overload: simulated, with the real queue, in virtual time.

Clients bring three times what one worker can score. Nothing waits, and no result depends on the machine.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from rescorer.errors import Overloaded
from rescorer.frames import WorkerScores
from rescorer.runtime import ContextWords
from rescorer.service.engine import engine as engine_module
from rescorer.service.engine.admission import Inflow, Pace, Slowdown
from rescorer.service.engine.engine import ScoringEngine, WorkItem
from rescorer.service.engine.fair_queue import Work
from rescorer.service.metrics import Metrics
from rescorer.service.settings import load_settings
from rescorer.service.workers.pool import WorkerPool

LIST_TOKENS = 1600
TOKENS_PER_S = 50_000.0
DEADLINE_S = 5.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting, as do those of ``time``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now, select = 0.0, self._selector.select

        def skip(timeout: float | None = None) -> list:
            self.now += timeout or 0.0
            return select(0)

        monkeypatch.setattr(self._selector, "select", skip)
        for clock in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, clock, self.time)

    def time(self) -> float:
        return self.now


class ImmediateExecutor(Executor):
    """Runs jobs at once, because real threads take no virtual time."""

    def __init__(self, *_) -> None: ...

    def submit(self, fn, /, *args, **kwargs) -> Future:
        done: Future = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class PretendBatch:
    """A batch with nothing but the number of its tokens, which stands for its trie."""

    tokens_asked, trie = 0, SimpleNamespace(n_edges=0)

    def __init__(self, parts, models) -> None:
        self._parts = parts

    def advance(self, scores=None):
        tokens = sum(part.cost for part in self._parts)
        request = SimpleNamespace(trie=tokens, models=(), encoders={}, surface=False, words=())
        return request if scores is None else None

    def part(self, index: int):
        return self._parts[index]

    def close(self) -> None: ...


class PretendWorker:
    """A worker that takes the time of the tokens, and 8 ms per batch. What overtakes is scored at the side.

    Args:
        pace: returns the seconds per token.
    """

    alive, is_stopped, labels, pids = True, False, ("model",), ()

    def __init__(self, pace: Callable[[], float]) -> None:
        self._pace, self._turn = pace, asyncio.Lock()

    async def score(self, job) -> WorkerScores:
        seconds = self._pace() * (0.008 * TOKENS_PER_S + job.trie)
        async with nullcontext() if job.overtakes else self._turn:
            await asyncio.sleep(seconds)
        return WorkerScores({}, {"lm": seconds}, ContextWords(), {})


class Call(NamedTuple):
    """An admitted call: when it came, and how long it took; infinite if its deadline passed."""

    came: float
    seconds: float


@dataclass
class Simulation:
    """Clients that bring three times what a worker can score."""

    n_clients: int
    seconds: float
    slow_from: float = math.inf
    """Time from which the worker takes five times as long."""
    admitted: list[Call] = field(default_factory=list)
    n_refused: int = 0

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Send calls, and wait for the end of all."""
        self._loop, self._rng = VirtualLoop(monkeypatch), random.Random(self.n_clients)
        monkeypatch.setattr(engine_module, "Batch", PretendBatch)
        monkeypatch.setattr(engine_module, "ThreadPoolExecutor", ImmediateExecutor)
        self._loop.run_until_complete(self._send_all(monkeypatch))
        self._loop.close()

    async def _send_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        worker = PretendWorker(lambda: (5 if self._loop.now >= self.slow_from else 1) / TOKENS_PER_S)
        pool = WorkerPool([worker], print)
        engine = ScoringEngine(load_settings(bundle="b"), pool, Metrics())
        monkeypatch.setattr(engine, "_metrics", SimpleNamespace(record_batch=lambda *_, **__: None))
        pool.open()
        engine.batcher.start()
        await self._call(engine, "first")  # from now on, the pace is known
        rate = 3 * TOKENS_PER_S / LIST_TOKENS / self.n_clients
        calls = []

        async def send(client: str) -> None:
            while self._loop.now < self.seconds:
                await asyncio.sleep(self._rng.expovariate(rate))
                calls.append(asyncio.create_task(self._call(engine, client)))

        await asyncio.gather(*(send(f"client {number}") for number in range(self.n_clients)))
        await asyncio.gather(*calls)
        await engine.stop()

    async def _call(self, engine: ScoringEngine, client: str) -> None:
        tokens, came = round(LIST_TOKENS * self._rng.uniform(0.5, 1.5)), self._loop.now
        try:
            async with engine.admission.admit(client, 1, tokens, remaining_s=DEADLINE_S) as ticket:
                item = WorkItem(SimpleNamespace(cost=tokens), "model", came + DEADLINE_S)
                engine.admission.begin_scoring(ticket, tokens)
                engine.batcher.put(item, client)
                done, _ = await asyncio.wait((item.future,), timeout=DEADLINE_S)
                engine.batcher.cancel([item])
                is_scored = bool(done) and item.future.exception() is None
                self.admitted.append(Call(came, self._loop.now - came if is_scored else math.inf))
        except Overloaded:
            self.n_refused += 1


@pytest.mark.parametrize("n_clients", [1, 20])
def test_no_admitted_call_is_late_at_three_times_the_peak(monkeypatch, n_clients):
    """With twenty clients, calls that come later precede those of clients who are further ahead."""
    found = Simulation(n_clients, seconds=12.0)
    found.run(monkeypatch)
    assert max(call.seconds for call in found.admitted) < 0.8 * DEADLINE_S
    capacity = 12.0 * TOKENS_PER_S / LIST_TOKENS
    assert len(found.admitted) > 0.9 * capacity  # and the worker is never idle
    assert found.n_refused > capacity


def test_calls_that_come_after_a_machine_got_slow_are_in_time(monkeypatch):
    """Batches were abandoned, since all their calls were late, and so nothing told that they take longer."""
    found = Simulation(20, seconds=20.0, slow_from=5.0)
    found.run(monkeypatch)
    later = [call.seconds for call in found.admitted if call.came > 6.0]
    assert sum(seconds < DEADLINE_S for seconds in later) == len(later) > 50


def test_a_slowdown_is_that_of_the_batch_that_runs_or_was_the_latest(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace()
    slowdown = Slowdown(pace, 1000, n_workers=1)
    with slowdown.watch("w", {"a": 1000}):  # nothing is known yet
        now[0] += 60.0
    assert slowdown.factor == 1
    pace.record({"a": 1000}, 1.0)
    with slowdown.watch("w", {"a": 2000}):
        now[0] += 1.0
        assert slowdown.factor == 1
        now[0] += 5.0
        assert slowdown.factor == 3
    assert slowdown.factor == 3
    with slowdown.watch("w", {"a": 10}):  # a small one may take as long as one with 1,000
        now[0] += 0.9
        assert slowdown.factor == 3
    assert slowdown.factor == 1
    for seconds in (4.0, 0.1):  # the second is abandoned so early that it says nothing
        with ExitStack() as abandoned:
            abandoned.enter_context(suppress(TimeoutError))
            abandoned.enter_context(slowdown.watch("w", {"a": 1000}))
            now[0] += seconds
            raise TimeoutError
    assert slowdown.factor == 4
    now[0] += 10.0
    assert slowdown.factor == 1


def test_one_slow_batch_does_not_slow_down_several_workers(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace()
    pace.record({"a": 1000}, 0.25)  # four workers, each of which took a second
    slowdown = Slowdown(pace, 1000, n_workers=4)
    with ExitStack() as running:
        for number in range(4):
            running.enter_context(slowdown.watch(number, {"a": 1000 if number else 100}))
            now[0] += 2.0 if number == 1 else 0.0
            assert slowdown.factor == 1
        now[0] += 2.0
        assert slowdown.factor == 2


def test_inflow_is_the_recent_work_per_second_by_client(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    inflow = Inflow()
    for _ in range(600):  # a minute with ten calls per second
        now[0] += 0.1
        inflow.record("busy", Work(20, 2))
    inflow.record("new", Work(50, 1))
    brought, others = inflow.within(3.0, "third")
    assert brought["busy"] == pytest.approx(Work(600, 60), rel=0.02)
    assert brought["new"] == pytest.approx(Work(30, 0.6))
    assert others == (0, 0)
    assert inflow.within(3.0, "busy").by_client.keys() == {"new"}
    now[0] += 60.0
    assert inflow.within(3.0, "third") == ({}, (0, 0))


def test_inflow_of_many_clients_is_that_of_the_heaviest_and_the_sum_of_all_others(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    inflow = Inflow()
    for number in range(3000):
        inflow.record(number, Work(10 + number, 1))
    brought, others = inflow.within(5.0, "another")
    assert sorted(brought) == list(range(2936, 3000))
    assert others == pytest.approx(Work(sum(10 + number for number in range(1976, 2936)), 960))
    assert inflow.within(5.0, 1976).others == pytest.approx(others.plus(-1986, -1))
    for client in (1976, "another"):  # work that is not in the average yet takes nothing from others' work
        inflow.record(client, Work(5000, 1))
    assert inflow.within(5.0, "another").others == others
    assert inflow.within(5.0, 1976).others == pytest.approx(others.plus(-1986, -1))
    assert inflow.within(5.0, 5).others == others  # forgotten, as 1,024 came later
