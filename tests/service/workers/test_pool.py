"""Scorers that are replaced: what the others have they load, unless it is gone for good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rescorer.errors import BundleError, Unavailable
from rescorer.service.workers import pool
from rescorer.service.workers.pool import WorkerPool


class Loader:
    """A worker that only loads, from folders that may be gone."""

    def __init__(self) -> None:
        self.alive, self.gone, self.has = True, set(), set()

    async def start(self):
        self.alive, self.has = True, set()

    async def load(self, label, folder):
        if label in self.gone:
            raise BundleError(f"{folder}: no such bundle folder")
        self.has.add(label)

    async def unload(self, label):
        self.has.discard(label)

    async def stop(self):
        self.alive = False


async def with_one_dead(timeout_s):
    """A pool of two workers, of which one has died after a bundle has gone from disk."""
    broken, workers = [], [Loader(), Loader()]
    pool = WorkerPool(workers, broken.append, timeout_s)
    await pool.start()
    for label in ("m/1", "m/2"):
        await pool.load(label, Path(label))
    for each in workers:
        each.gone.add("m/1")
    async with pool.free() as worker:
        worker.alive = False
    return pool, worker, broken


async def soon(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_bundle_that_is_gone_and_then_unloaded_does_not_end_the_server():
    async def check():
        pool, worker, broken = await with_one_dead(timeout_s=20)
        await asyncio.sleep(0.3)
        assert (pool.n_idle, broken) == (1, [])
        await pool.unload("m/1")
        await soon(lambda: pool.n_idle == 2)
        assert (worker.has, broken) == ({"m/2"}, [])
        await pool.stop()

    asyncio.run(check())


def test_a_bundle_that_is_gone_for_good_ends_the_server():
    async def check():
        pool, _, broken = await with_one_dead(timeout_s=0.1)
        await soon(lambda: broken)
        assert broken == ["m/1: no such bundle folder"]
        await pool.stop()

    asyncio.run(check())


async def pool_of_one():
    pool = WorkerPool([Loader()], lambda reason: None)
    await pool.start()
    return pool


def test_who_comes_back_at_once_does_not_overtake_who_waits():
    async def check():
        pool, order = await pool_of_one(), []

        async def one_after_the_other(name):
            for _ in range(3):  # without a pause between them
                async with pool.free():
                    order.append(name)
                    await asyncio.sleep(0)

        await asyncio.gather(*(one_after_the_other(name) for name in "abc"))
        assert "".join(order) == "abcabcabc"

    asyncio.run(check())


def test_a_scorer_given_to_one_who_no_longer_waits_goes_to_the_next():
    async def check():
        pool = await pool_of_one()

        async def once():
            async with pool.free():
                return True

        async with pool.free():
            waiting = [asyncio.create_task(once()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()  # while it waits
        waiting[1].cancel()  # after it was given the worker, before it knows
        assert await waiting[2]
        assert pool.n_idle == 1

    asyncio.run(check())


def test_scorers_that_die_all_at_once_come_back():
    async def check():
        broken, workers = [], [Loader() for _ in range(8)]
        pool = WorkerPool(workers, broken.append)
        await pool.start()
        await pool.stop()  # all are dead, as where the machine had no memory left
        async with asyncio.timeout(10), pool.free():
            assert broken == []
        await soon(lambda: pool.n_idle == 8)
        assert (broken, all(each.alive for each in workers)) == ([], True)

    asyncio.run(check())


def test_a_scorer_that_is_never_alive_ends_the_server(monkeypatch):
    monkeypatch.setattr(pool, "RESTART_DELAY_S", 0.001)

    async def check():
        broken, worker = [], Loader()
        worker.start = worker.stop
        pool = WorkerPool([worker], broken.append)
        await pool.start()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30), pool.free():
                pass
        assert broken == ["a worker died 6 times in a row"]

    asyncio.run(check())
