"""Offloading of jobs to threads, and the number of threads and the niceness of workers."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from rescorer.runtime import Phase, pause, phase
from rescorer.service.engine.offloader import SMALL_TOKENS, SMALLER, Offloader, Turns
from rescorer.service.server import NICENESS, niceness_of, threads_of
from rescorer.service.settings import load_settings


def thread_id_in_phase() -> int:
    with phase(Phase.TRIE):
        return threading.get_ident()


def test_offloads_only_large_jobs_and_times_all():
    async def runs_in_event_loop(tokens: int) -> bool:
        with ThreadPoolExecutor(1) as threads:
            thread_id, timings = await Offloader(threads).run(thread_id_in_phase, tokens)
        assert "trie" in {timing.phase for timing in timings}
        return thread_id == threading.get_ident()

    assert asyncio.run(runs_in_event_loop(SMALL_TOKENS))
    assert not asyncio.run(runs_in_event_loop(SMALL_TOKENS + 1))


@pytest.mark.parametrize("size", [1, SMALL_TOKENS + 1])
def test_propagates_exceptions_of_jobs(size):
    async def fail() -> None:
        with ThreadPoolExecutor(1) as threads:
            await Offloader(threads).run(lambda: 1 // 0, size)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())


def test_forgets_waiting_jobs_of_cancelled_calls():
    async def cancel_a_waiting_job() -> None:
        finish, request = threading.Event(), frozenset(["large"])
        request_alive = weakref.ref(request)
        with ThreadPoolExecutor(1) as threads:
            offloader = Offloader(threads)
            running = asyncio.create_task(offloader.run(finish.wait, SMALL_TOKENS + 1))
            waiting = asyncio.create_task(offloader.run(lambda request=request: request, SMALL_TOKENS + 1))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            del waiting, request
            gc.collect()
            try:
                assert request_alive() is None
            finally:
                finish.set()
            await running

    asyncio.run(cancel_a_waiting_job())


@pytest.mark.parametrize(
    ("n_cpus", "workers", "threads", "expected"),
    [(2, 0, 0, 1), (2, 1, 0, 1), (2, 2, 0, 1), (8, 1, 0, 7), (8, 3, 0, 2), (1, 1, 0, 1), (8, 8, 3, 3)],
)
def test_workers_share_all_cores_but_one(monkeypatch, n_cpus, workers, threads, expected):
    monkeypatch.setattr("rescorer.service.server.count_cpus", lambda: n_cpus)
    assert threads_of(load_settings(bundle="x", workers=workers, threads=threads)) == expected


@pytest.mark.parametrize(
    ("n_cpus", "workers", "threads", "device", "niceness"),
    [(2, 1, 0, "cpu", 0), (2, 2, 0, "cpu", NICENESS), (8, 4, 2, "cpu", NICENESS), (2, 2, 0, "cuda", 0)],
)
def test_workers_that_use_all_cores_have_lower_priority(
    monkeypatch, n_cpus, workers, threads, device, niceness
):
    monkeypatch.setattr("rescorer.service.server.count_cpus", lambda: n_cpus)
    settings = load_settings(bundle="x", workers=workers, threads=threads, device=device)
    assert niceness_of(settings) == niceness


def test_a_large_job_ends_at_its_next_pause_after_its_call_is_cancelled():
    begun, ended = threading.Event(), threading.Event()

    def work_for_ever() -> None:
        begun.set()
        try:
            while True:
                pause()
        finally:
            ended.set()

    async def cancel_a_running_job() -> None:
        with ThreadPoolExecutor(1) as threads:
            offloader = Offloader(threads)
            running = asyncio.create_task(offloader.run(work_for_ever, SMALL_TOKENS + 1))
            await asyncio.to_thread(begun.wait, 10)
            running.cancel()
            assert await asyncio.to_thread(ended.wait, 10)
            result, _ = await offloader.run(lambda: "next", SMALL_TOKENS + 1)
            assert result == "next"

    asyncio.run(cancel_a_running_job())


def test_a_newcomer_waits_for_one_turn_of_a_client_with_many():
    async def take_turns() -> list[str]:
        turns, order = Turns(), list[str]()

        async def take(client: str) -> None:
            await turns.take(client)
            order.append(client)

        flood = [asyncio.create_task(take("flood")) for _ in range(50)]
        while len(order) < 5:
            await asyncio.sleep(0)
        await take("newcomer")
        await asyncio.gather(*flood)
        return order

    order = asyncio.run(take_turns())
    assert len(order) == 51
    assert order.index("newcomer") <= 7


def test_each_turn_returns_to_the_event_loop_before_the_next():
    async def take_turns() -> list[int]:
        turns, turns_of_pass, n_passes = Turns(), [0], 0

        async def take() -> None:
            await turns.take("")
            turns_of_pass[-1] += 1

        waiting = [asyncio.create_task(take()) for _ in range(20)]
        while not all(task.done() for task in waiting):
            await asyncio.sleep(0)
            turns_of_pass.append(0)
            n_passes += 1
        assert n_passes < 200
        return turns_of_pass

    taken = asyncio.run(take_turns())
    assert sum(taken) == 20
    assert max(taken) == 1


def test_cancelled_turns_go_to_others():
    async def cancel_every_second() -> int:
        turns = Turns()
        waiting = [asyncio.create_task(turns.take("")) for _ in range(10)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        await asyncio.wait(waiting, timeout=10)
        await asyncio.wait_for(turns.take(""), 10)  # and so do later ones
        return sum(not task.cancelled() for task in waiting if task.done())

    assert asyncio.run(cancel_every_second()) >= 5


@pytest.mark.parametrize(
    ("tokens", "urgent", "runs"),
    [
        (SMALL_TOKENS + 1, False, True),
        (2 * SMALL_TOKENS, False, False),
        (9 * SMALL_TOKENS, False, False),
        (9 * SMALL_TOKENS, True, True),
    ],
)
def test_far_smaller_and_urgent_jobs_run_beside_a_large_one(tokens, urgent, runs):
    async def runs_beside() -> bool:
        finish, begun = threading.Event(), threading.Event()
        with ThreadPoolExecutor(2) as threads:
            offloader = Offloader(threads, 2)
            large = asyncio.create_task(offloader.run(finish.wait, SMALLER * (SMALL_TOKENS + 1)))
            await asyncio.sleep(0)
            other = asyncio.create_task(offloader.run(begun.set, tokens, "other", urgent=urgent))
            await asyncio.to_thread(begun.wait, 10 if runs else 0.05)
            has_begun = begun.is_set()
            finish.set()
            await asyncio.gather(large, other)
            return has_begun

    assert asyncio.run(runs_beside()) == runs


LARGE_TOKENS = SMALLER * (SMALL_TOKENS + 1)


class Jobs:
    """Jobs of an offloader, each of which runs until the test ends it."""

    def __init__(self, offloader: Offloader) -> None:
        self._offloader, self._tasks = offloader, dict[str, asyncio.Task]()
        self._ends = dict[str, threading.Event]()
        self.begun: list[str] = []

    async def add(self, name: str, tokens: int = LARGE_TOKENS, *, urgent: bool = False) -> None:
        end = self._ends[name] = threading.Event()

        def job() -> None:
            self.begun.append(name)
            end.wait(20)

        self._tasks[name] = asyncio.create_task(self._offloader.run(job, tokens, name, urgent=urgent))
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await asyncio.wait_for(asyncio.gather(*(self._tasks[name] for name in names)), 20)


def run_jobs(n_threads: int, story: Callable) -> list[str]:
    """Return the names of the jobs in the order in which they began."""

    async def run() -> list[str]:
        with ThreadPoolExecutor(n_threads) as threads:
            jobs = Jobs(Offloader(threads, n_threads))
            await story(jobs)
            return jobs.begun

    return asyncio.run(run())


def test_urgent_jobs_that_wait_for_one_thread_are_done_one_by_one():
    async def story(jobs: Jobs) -> None:
        await jobs.add("large")
        for name in "abc":
            await jobs.add(name, urgent=True)
        await jobs.end("large", "a", "b", "c")

    assert run_jobs(1, story) == ["large", "a", "b", "c"]


def test_urgent_jobs_are_done_beside_a_large_one_although_it_is_the_turn_of_another():
    async def story(jobs: Jobs) -> None:
        await jobs.add("large")
        await jobs.add("next")
        for name in ("a", "b", "c"):
            await jobs.add(name, urgent=True)
            await jobs.end(name)
        await jobs.end("large", "next")

    assert run_jobs(2, story) == ["large", "a", "b", "c", "next"]


def test_a_large_job_gets_its_turn_although_urgent_ones_never_end():
    async def story(jobs: Jobs) -> None:
        await jobs.add("0", urgent=True)
        await jobs.add("1", urgent=True)
        await jobs.add("large")
        for number in range(2, 8):  # one always runs, and one waits
            await jobs.add(str(number), urgent=True)
            await jobs.end(str(number - 2))
            if "large" in jobs.begun:
                break
        await jobs.end("large", str(number - 1), str(number))

    assert "large" in run_jobs(2, story)


def test_jobs_of_cancelled_calls_leave_the_others_to_be_done():
    """Two urgent jobs wait, because it is the turn of a normal one; then that one's call is cancelled."""

    async def story(jobs: Jobs) -> None:
        await jobs.add("large")
        await jobs.add("next")
        await jobs.add("small", SMALL_TOKENS + 1)
        await jobs.add("a", urgent=True)
        await jobs.add("b", urgent=True)
        await jobs.cancel("next")
        await jobs.end("large", "small", "a", "b")

    assert sorted(run_jobs(2, story)) == ["a", "b", "large", "small"]


def test_turns_keep_nothing_of_a_call_that_had_one():
    class Request:
        pass

    request_of_call: ContextVar[Request] = ContextVar("request")

    async def take_turns() -> None:
        turns = Turns()

        async def call() -> weakref.ref[Request]:
            request_of_call.set(request := Request())
            await turns.take("first")
            return weakref.ref(request)

        first = asyncio.create_task(call())
        await asyncio.sleep(0)
        others = [asyncio.create_task(turns.take("others")) for _ in range(20)]
        request = await first
        del first
        await asyncio.sleep(0)
        gc.collect()
        assert not all(other.done() for other in others)
        assert request() is None
        await asyncio.gather(*others)

    asyncio.run(take_turns())
