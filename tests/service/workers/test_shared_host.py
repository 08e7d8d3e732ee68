"""A worker shared by front ends: bundles are loaded once, kept while in use, and used by one at a time."""

from __future__ import annotations

import asyncio
import functools
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import BundleError
from rescorer.frames import ScoreJob, pack
from rescorer.service.workers.host import SharedModels, serve
from rescorer.service.workers.peers import read_frame


def in_event_loop(test):
    @functools.wraps(test)
    def run(*arguments, **options):
        asyncio.run(test(*arguments, **options))

    return run


class CountingModels:
    """Models that count loads and allow one scorer at a time."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.loads = 0
        self.unusable: set[str] = set()
        self.scoring = threading.Lock()

    def load(self, label, folder):
        if label in self.unusable:
            raise BundleError(f"{folder}: no such bundle folder")
        self.loads += 1
        self.loaded.append(label)
        return 1

    def unload(self, label):
        self.loaded.remove(label)

    def score(self, job, on_pause=None):
        assert self.scoring.acquire(blocking=False), "two calls at the same time"
        try:
            assert job.label in self.loaded
            return job.trie
        finally:
            self.scoring.release()


class ChildStub:
    """A child process, which counts its bundle as one of some models."""

    pid = 2

    def __init__(self, models):
        self.models, self.has_died = models, asyncio.Event()

    async def start_with(self, label, folder):
        self.label = label
        self.models.loaded.append(label)

    async def score(self, job):
        return self.models.score(job)

    async def wait_closed(self):
        await self.has_died.wait()

    async def stop(self):
        self.models.unload(self.label)


def share(models):
    return SharedModels(models, lambda: ChildStub(models), 30.0)


STEPS = st.tuples(
    st.sampled_from(["load", "unload", "unload_all"]),
    st.integers(0, 2),
    st.sampled_from(["m/1", "m/2", "n/1"]),
)


@given(st.lists(STEPS, max_size=30))
@in_event_loop
async def test_a_bundle_is_in_memory_once_while_any_client_has_it(steps):
    models = CountingModels()
    shared = share(models)
    loaded: list[set[str]] = [set(), set(), set()]
    loads = 0
    for step, number, label in steps:
        if step == "load":
            loads += not any(label in labels for labels in loaded)
            await shared.load(number, label, Path(label))
            loaded[number].add(label)
        elif step == "unload":
            await shared.unload(number, label)
            loaded[number].discard(label)
        else:
            await shared.unload_all(number)
            loaded[number].clear()
        assert sorted(models.loaded) == sorted(set().union(*loaded))
        assert models.loads == loads
    shared.close()


@in_event_loop
async def test_a_failed_load_is_not_recorded():
    models = CountingModels()
    shared = share(models)
    first, second = "first", "second"
    models.unusable.add("m/1")
    with pytest.raises(BundleError):
        await shared.load(first, "m/1", Path("m/1"))
    models.unusable.clear()
    await shared.load(second, "m/1", Path("m/1"))
    await shared.unload_all(first)
    assert models.loaded == ["m/1"]


@in_event_loop
async def test_concurrent_clients_do_not_interfere():
    models = CountingModels()
    shared = share(models)

    async def use(number: int) -> None:
        for turn in range(50):
            client = object()
            await shared.load(client, "m/1", Path("m/1"))
            assert await shared.score(ScoreJob("m/1", (number, turn))) == (number, turn)
            await shared.unload_all(client)

    await asyncio.gather(*map(use, range(4)))
    assert (models.loaded, shared.labels) == ([], set())


class SlowModels(CountingModels):
    """Models whose ``load`` waits for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.loading, self.may_finish = threading.Event(), threading.Event()

    def load(self, label, folder):
        self.loading.set()
        assert self.may_finish.wait(30)
        return super().load(label, folder)


@in_event_loop
async def test_unloading_does_not_block_requests_while_another_client_loads(tmp_path):
    models = SlowModels()
    shared = share(models)
    path = tmp_path / "socket"
    served = asyncio.Event()

    async def serve_once(*streams):
        await serve(shared, *streams)
        served.set()

    async with await asyncio.start_unix_server(serve_once, path):
        loading = asyncio.create_task(shared.load(object(), "m/2", Path("m/2")))
        try:
            assert await asyncio.to_thread(models.loading.wait, 30)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(pack({"id": 1, "do": "unload", "label": "m/1"}) + pack({"id": 2, "do": "greet"}))
            async with asyncio.timeout(30):
                assert (await read_frame(reader)).header["id"] == 2
        finally:
            models.may_finish.set()
        async with asyncio.timeout(30):
            assert (await read_frame(reader)).header["id"] == 1
            writer.close()
            await writer.wait_closed()
            await asyncio.gather(loading, served.wait())


@in_event_loop
async def test_bundles_are_loaded_by_other_processes_once_the_worker_is_in_service():
    models = CountingModels()
    shared = share(models)
    first, restarted = "first", "restarted"
    assert await shared.load(first, "m/1", Path("m/1")) == 1
    assert await shared.load(first, "m/2", Path("m/2"), beside=True) == 2
    assert await shared.load(first, "n/1", Path("n/1")) == 1  # nothing was scored yet
    assert await shared.score(ScoreJob("m/2", "trie")) == "trie"
    labels = "m/1", "m/2", "n/1", "n/2"
    assert [await shared.load(restarted, label, Path(label)) for label in labels] == [1, 2, 1, 2]
    assert models.loads == 2
    for client in (first, restarted):
        await shared.unload_all(client)
    assert models.loaded == []


@in_event_loop
async def test_a_load_that_fails_fails_for_all_who_waited_for_it():
    models = SlowModels()
    models.unusable.add("m/1")
    shared = share(models)
    loads = [asyncio.create_task(shared.load(object(), "m/1", Path("m/1")))]
    assert await asyncio.to_thread(models.loading.wait, 30)
    models.loading.clear()
    loads.append(asyncio.create_task(shared.load(object(), "m/1", Path("m/1"))))
    await asyncio.sleep(0.2)  # until the second one waits
    models.may_finish.set()
    async with asyncio.timeout(30):
        results = await asyncio.gather(*loads, return_exceptions=True)
    assert all(isinstance(result, BundleError) for result in results)
    assert not models.loading.is_set()
