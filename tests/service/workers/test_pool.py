"""The pool of workers: restarts, loading bundles after a restart, and fair lending."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path

import pytest

from rescorer.errors import BundleError, LoaderDied, Unavailable
from rescorer.service.workers import pool as pool_module
from rescorer.service.workers.peers import WorkerLost
from rescorer.service.workers.pool import WorkerGroup, WorkerPool


class FakeWorker:
    """A worker that only loads bundles, of which some may be missing on disk."""

    def __init__(self) -> None:
        self.alive, self.is_stopped, self.pids = True, False, ()
        self.missing, self.deadly, self.labels = set(), set(), set()
        self.deaths = Counter()  # how many more times a bundle kills the process that loads it

    async def start(self):
        self.alive, self.labels = True, set()

    async def load(self, label, folder):
        if label in self.deadly or self.deaths[label] > 0:
            self.deaths[label] -= 1
            self.alive = False
            raise WorkerLost("a worker has died")
        await self.load_beside(label, folder)

    async def load_beside(self, label, folder):
        if self.deaths[label] > 0:
            self.deaths[label] -= 1
            raise LoaderDied(str(folder))
        if label in self.missing | self.deadly:
            raise BundleError(f"{folder}: no such bundle folder")
        self.labels.add(label)

    async def unload(self, label):
        self.labels.discard(label)

    async def stop(self):
        self.alive = False


async def start_pool_with_one_dead_worker(timeout_s):
    """Start a pool of two workers; then remove a bundle from disk and let one worker die."""
    reasons, workers = [], [FakeWorker(), FakeWorker()]
    pool = WorkerPool(workers, reasons.append, timeout_s)
    await pool.start()
    for label in ("m/1", "m/2"):
        await pool.load(label, Path(label))
    pool.open()
    for worker in workers:
        worker.missing.add("m/1")
    async with pool.acquire() as worker:
        worker.alive = False
    return pool, worker, reasons


async def wait_for(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_missing_bundle_is_tolerated_if_it_is_then_unloaded():
    async def check():
        pool, worker, reasons = await start_pool_with_one_dead_worker(timeout_s=20)
        await asyncio.sleep(0.3)
        assert (pool.n_idle, reasons) == (1, [])
        await pool.unload("m/1")
        await wait_for(lambda: pool.n_idle == 2)
        assert (worker.labels, reasons) == ({"m/2"}, [])
        await pool.stop()

    asyncio.run(check())


def test_without_a_worker_it_estimates_when_one_is_ready():
    class SlowWorker(FakeWorker):
        async def load(self, label, folder):
            await asyncio.sleep(0.05)
            await super().load(label, folder)

    async def check():
        worker = SlowWorker()
        pool = WorkerPool([worker], lambda reason: None)
        await pool.start()
        await pool.load("m/1", Path("m/1"))
        pool.open()
        assert pool.ready_in_s == 0.0
        async with pool.acquire():
            worker.alive = False
            assert pool.ready_in_s >= 0.05  # as long as loading took
        assert 0.0 < pool.ready_in_s < 5.0
        await wait_for(lambda: pool.n_alive == 1)
        assert pool.ready_in_s == 0.0
        await pool.stop()

    asyncio.run(check())


async def start_pool_with_one_worker():
    """Start a pool of one worker with two bundles; return both, and a list of bundles that are lost later."""
    worker, lost = FakeWorker(), []
    pool = WorkerPool([worker], lost.append)
    pool.on_lost = lost.append
    await pool.start()
    for label in ("m/1", "m/2"):
        await pool.load(label, Path(label))
    pool.open()
    return pool, worker, lost


async def start_pool_that_loses_its_bundle():
    """Start a pool of one worker, whose only bundle is then removed from disk, and wait for its loss."""
    pool, worker, lost = await start_pool_with_one_worker()
    await pool.unload("m/2")
    worker.missing.add("m/1")
    async with pool.acquire():
        worker.alive = False
    await wait_for(lambda: lost)
    return pool, worker


@pytest.mark.parametrize("harm", ["missing", "deadly"])
def test_a_bundle_that_cannot_be_loaded_again_does_not_keep_others_from_being_served(harm, monkeypatch):
    monkeypatch.setattr(pool_module, "RELOAD_DELAY_S", 0.001)
    monkeypatch.setattr(pool_module, "RESTART_DELAY_S", 0.001)

    async def check():
        pool, worker, lost = await start_pool_with_one_worker()
        getattr(worker, harm).add("m/1")  # from now on, the bundle is missing, or kills who loads it
        async with pool.acquire():
            worker.alive = False
        await wait_for(lambda: pool.n_alive == 1)
        assert worker.labels == {"m/2"}
        assert (pool.why_lost("m/1"), pool.why_lost("m/2")) == ("m/1: no such bundle folder", "")
        assert set(lost) == {"m/1"}
        getattr(worker, harm).clear()
        await wait_for(lambda: not pool.why_lost("m/1"))
        assert worker.labels == {"m/1", "m/2"}
        await pool.stop()

    asyncio.run(check())


def test_a_bundle_is_lost_only_after_several_processes_have_died_while_they_loaded_it(monkeypatch):
    monkeypatch.setattr(pool_module, "RELOAD_DELAY_S", 0.001)
    monkeypatch.setattr(pool_module, "RESTART_DELAY_S", 0.001)

    async def check(n_deaths):
        pool, worker, lost = await start_pool_with_one_worker()
        worker.deaths["m/1"] = n_deaths
        async with pool.acquire():
            worker.alive, worker.labels = False, set()
        await wait_for(lambda: "m/1" in worker.labels)
        await pool.stop()
        return bool(lost)

    assert [asyncio.run(check(n)) for n in range(4)] == [False, False, False, True]


def test_a_single_bundle_that_cannot_be_loaded_again_is_lost(monkeypatch):
    monkeypatch.setattr(pool_module, "RELOAD_DELAY_S", 0.001)

    async def check():
        pool, worker = await start_pool_that_loses_its_bundle()
        assert (pool.n_alive, pool.why_lost("m/1")) == (0, "m/1: no such bundle folder")
        worker.missing.clear()
        await wait_for(lambda: pool.n_alive == 1)
        assert pool.why_lost("m/1") == ""
        await pool.stop()

    asyncio.run(check())


def test_a_bundle_that_kills_its_loader_at_the_start_is_refused():
    async def check():
        workers = [FakeWorker(), FakeWorker()]
        pool = WorkerPool(workers, lambda reason: None)
        await pool.start()
        await pool.load("m/1", Path("m/1"))
        for worker in workers:
            worker.deadly.add("m/2")
        with pytest.raises(BundleError, match="m/2: the process that loaded it died"):
            await pool.load("m/2", Path("m/2"))
        await pool.load("m/3", Path("m/3"))
        pool.open()
        assert (pool.n_alive, [worker.labels for worker in workers]) == (2, [{"m/1", "m/3"}] * 2)
        await pool.stop()

    asyncio.run(check())


def test_a_missing_bundle_does_not_keep_a_restarted_worker_from_loading_others(monkeypatch):
    monkeypatch.setattr(pool_module, "RELOAD_DELAY_S", 0.01)

    async def check():
        worker = FakeWorker()
        pool = WorkerPool([worker], lambda reason: None)
        await pool.start()
        await pool.load("m/1", Path("m/1"))
        worker.deadly.add("m/2")
        with pytest.raises(BundleError, match="m/2: the process that loaded it died"):
            await pool.load("m/2", Path("m/2"))
        worker.missing.add("m/1")
        await pool.load("m/3", Path("m/3"))
        assert worker.labels == {"m/3"}
        pool.open()
        assert pool.why_lost("m/1") == "m/1: no such bundle folder"
        worker.missing.clear()
        await wait_for(lambda: worker.labels == {"m/1", "m/3"})
        assert pool.why_lost("m/1") == ""
        await pool.stop()

    asyncio.run(check())


def test_a_worker_that_has_lost_all_bundles_loads_new_ones(monkeypatch):
    """It waited for the lost bundle, and so did every later load: a new version never came into service."""
    monkeypatch.setattr(pool_module, "RELOAD_DELAY_S", 0.001)

    async def check():
        pool, worker = await start_pool_that_loses_its_bundle()
        async with asyncio.timeout(20):
            await pool.load("m/2", Path("m/2"))
        assert (pool.n_alive, worker.labels, pool.why_lost("m/2")) == (1, {"m/2"}, "")
        await pool.stop()

    asyncio.run(check())


def test_delays_between_attempts_to_load_grow():
    delays = list(itertools.islice(pool_module.reload_delays(), 2000))
    assert delays == [1, 2, 4, 8, 16, *[30] * 1995]


def test_a_worker_returns_when_its_bundle_is_back(monkeypatch):
    monkeypatch.setattr(pool_module, "RELOAD_DELAY_S", 0.05)

    async def check():
        pool, worker, reasons = await start_pool_with_one_dead_worker(timeout_s=0.1)
        await asyncio.sleep(0.3)
        assert (pool.n_idle, pool.n_alive) == (1, 1)
        worker.missing.clear()
        await wait_for(lambda: pool.n_alive == 2)
        assert (worker.labels, reasons) == ({"m/1", "m/2"}, [])
        await pool.stop()

    asyncio.run(check())


def test_a_bundle_that_is_unloaded_while_a_worker_loads_it_again_does_not_stay():
    async def check():
        pool, worker, _ = await start_pool_with_one_dead_worker(timeout_s=20)
        worker.missing.clear()
        load, loads, goes_on = worker.load, [], asyncio.Event()

        async def load_slowly(label, folder):
            loads.append(label)
            await goes_on.wait()
            await load(label, folder)

        worker.load = load_slowly
        await wait_for(lambda: loads == ["m/1"])
        await pool.unload("m/1")
        goes_on.set()
        await wait_for(lambda: pool.n_alive == 2)
        assert worker.labels == {"m/2"}
        await pool.stop()

    asyncio.run(check())


class SlowProcess(FakeWorker):
    """A process of a worker that loads only as fast as the test allows it, and is lost if it is stopped."""

    def __init__(self, machine, niceness):
        super().__init__()
        self.goes_on = asyncio.Event()

    async def load(self, label, folder):
        await self.goes_on.wait()
        if not self.alive:
            raise WorkerLost("a process has died")
        self.labels.add(label)

    async def start_with(self, label, folder):
        self.labels.add(label)

    async def stop(self):
        self.alive = False
        self.goes_on.set()


def test_a_reload_does_not_stop_a_process_that_is_loading_after_a_restart(monkeypatch):
    monkeypatch.setattr(pool_module, "ProcessWorker", SlowProcess)

    async def check():
        group = WorkerGroup(machine=None)
        await group.start()
        (restarted,) = group._members
        loading = asyncio.create_task(group.load("m/1", Path("m/1")))
        await asyncio.sleep(0)
        await group.load_beside("m/2", Path("m/2"))
        restarted.goes_on.set()
        await loading
        assert (group.alive, group.labels) == (True, {"m/1", "m/2"})

    asyncio.run(check())


async def start_pool_of_one():
    pool = WorkerPool([FakeWorker()], lambda reason: None)
    await pool.start()
    pool.open()
    return pool


def test_a_returning_caller_does_not_overtake_waiting_ones():
    async def check():
        pool, order = await start_pool_of_one(), []

        async def acquire_three_times(name):
            for _ in range(3):  # without a pause between them
                async with pool.acquire():
                    order.append(name)
                    await asyncio.sleep(0)

        await asyncio.gather(*(acquire_three_times(name) for name in "abc"))
        assert "".join(order) == "abcabcabc"

    asyncio.run(check())


def test_a_cancelled_caller_passes_its_worker_on():
    async def check():
        pool = await start_pool_of_one()

        async def acquire_once():
            async with pool.acquire():
                return True

        async with pool.acquire():
            waiting = [asyncio.create_task(acquire_once()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()  # while it is waiting
        waiting[1].cancel()  # after it was given the worker, before it has woken up
        assert await waiting[2]
        assert pool.n_idle == 1

    asyncio.run(check())


def test_restarts_workers_that_die_all_at_once():
    async def check():
        reasons, workers = [], [FakeWorker() for _ in range(8)]
        pool = WorkerPool(workers, reasons.append)
        await pool.start()
        pool.open()
        await asyncio.gather(
            *(worker.stop() for worker in workers)
        )  # all are dead, as when the machine runs out of memory
        async with asyncio.timeout(10), pool.acquire():
            assert reasons == []
        await wait_for(lambda: pool.n_idle == 8)
        assert (reasons, all(worker.alive for worker in workers)) == ([], True)

    asyncio.run(check())


def test_reports_a_worker_that_never_starts(monkeypatch):
    monkeypatch.setattr(pool_module, "RESTART_DELAY_S", 0.001)

    async def check():
        reasons, worker = [], FakeWorker()
        worker.start = worker.stop
        pool = WorkerPool([worker], reasons.append)
        await pool.start()
        pool.open()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30), pool.acquire():
                pass
        assert reasons == ["a worker died 6 times in a row"]

    asyncio.run(check())
