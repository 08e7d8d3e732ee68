"""A worker shared by front ends: bundles are loaded once, kept while in use, and used by one at a time."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import BundleError
from rescorer.service.workers.frames import ScoreJob, pack, read_frames
from rescorer.service.workers.host import SharedModels, serve


class CountingHost:
    """A host that counts loads and allows one scorer at a time."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.loads = 0
        self.unusable: set[str] = set()
        self.scoring = threading.Lock()

    def load(self, label, folder, timeout_s=0.0):
        if label in self.unusable:
            raise BundleError(f"{folder}: no such bundle folder")
        self.loads += 1
        self.loaded.append(label)
        return 1

    def unload(self, label):
        self.loaded.remove(label)

    def score(self, job):
        assert self.scoring.acquire(blocking=False), "two calls at the same time"
        try:
            assert job.label in self.loaded
            return job.trie
        finally:
            self.scoring.release()


class ChildStub(CountingHost):
    """A child process of a host, which counts its bundle as the host's."""

    def __init__(self, host):
        super().__init__()
        self.loaded, self.scoring = host.loaded, host.scoring

    def load(self, label, folder, timeout_s=0.0):
        self.label = label
        return super().load(label, folder) + 1

    def watch(self, on_lost):
        pass

    def close(self):
        self.loaded.remove(self.label)


def share(host):
    return SharedModels(host, lambda: ChildStub(host), 30.0)


STEPS = st.tuples(
    st.sampled_from(["load", "unload", "unload_all"]),
    st.integers(0, 2),
    st.sampled_from(["m/1", "m/2", "n/1"]),
)


@given(st.lists(STEPS, max_size=30))
def test_a_bundle_is_in_memory_once_while_any_client_has_it(steps):
    host = CountingHost()
    shared = share(host)
    loaded: list[set[str]] = [set(), set(), set()]
    loads = 0
    for step, number, label in steps:
        if step == "load":
            loads += not any(label in labels for labels in loaded)
            shared.load(number, label, Path(label))
            loaded[number].add(label)
        elif step == "unload":
            shared.unload(number, label)
            loaded[number].discard(label)
        else:
            shared.unload_all(number)
            loaded[number].clear()
        assert sorted(host.loaded) == sorted(set().union(*loaded))
        assert host.loads == loads


def test_a_failed_load_is_not_recorded():
    host = CountingHost()
    shared = share(host)
    first, second = "first", "second"
    host.unusable.add("m/1")
    with pytest.raises(BundleError):
        shared.load(first, "m/1", Path("m/1"))
    host.unusable.clear()
    shared.load(second, "m/1", Path("m/1"))
    shared.unload_all(first)
    assert host.loaded == ["m/1"]


def test_concurrent_clients_do_not_interfere():
    host = CountingHost()
    shared = share(host)

    def use_host(number: int) -> None:
        for turn in range(50):
            client = object()
            shared.load(client, "m/1", Path("m/1"))
            assert shared.score(ScoreJob("m/1", (number, turn))).result() == (number, turn)
            shared.unload_all(client)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use_host, range(4)))
    assert (host.loaded, shared.labels) == ([], set())


class SlowHost(CountingHost):
    """A host whose ``load`` waits for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.loading, self.may_finish = threading.Event(), threading.Event()

    def load(self, label, folder, timeout_s=0.0):
        self.loading.set()
        assert self.may_finish.wait(30)
        return super().load(label, folder)


def test_unloading_does_not_block_requests_while_another_client_loads():
    host = SlowHost()
    shared = share(host)
    client, server = socket.socketpair()
    with ThreadPoolExecutor(2) as pool, server, client:
        loading = pool.submit(shared.load, object(), "m/2", Path("m/2"))
        try:
            assert host.loading.wait(30)
            pool.submit(serve, server, shared)
            client.settimeout(30)
            client.sendall(pack({"id": 1, "do": "unload", "label": "m/1"}) + pack({"id": 2, "do": "greet"}))
            replies = read_frames(client)
            assert next(replies).header["id"] == 2
        finally:
            host.may_finish.set()
        assert next(replies).header["id"] == 1
        client.shutdown(socket.SHUT_WR)
        loading.result(30)


def test_bundles_are_loaded_by_other_processes_once_the_worker_is_in_service():
    host = CountingHost()
    shared = share(host)
    first, restarted = "first", "restarted"
    assert shared.load(first, "m/1", Path("m/1")) == 1
    assert shared.load(first, "m/2", Path("m/2"), beside=True) == 2
    assert shared.load(first, "n/1", Path("n/1")) == 1  # nothing was scored yet
    assert shared.score(ScoreJob("m/2", "trie")).result() == "trie"
    labels = "m/1", "m/2", "n/1", "n/2"
    assert [shared.load(restarted, label, Path(label)) for label in labels] == [1, 2, 1, 2]
    assert host.loads == 2
    for client in (first, restarted):
        shared.unload_all(client)
    assert host.loaded == []


def test_a_load_that_fails_fails_for_all_who_waited_for_it():
    host = SlowHost()
    host.unusable.add("m/1")
    shared = share(host)
    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(shared.load, object(), "m/1", Path("m/1"))]
        assert host.loading.wait(30)
        host.loading.clear()
        loads.append(pool.submit(shared.load, object(), "m/1", Path("m/1")))
        time.sleep(0.2)  # until the second one waits
        host.may_finish.set()
        assert all(isinstance(load.exception(30), BundleError) for load in loads)
    assert not host.loading.is_set()
