"""Bundles that fronts share in a worker: loaded once, kept while any front has them, scored in turn."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import BundleError
from rescorer.service.workers.__main__ import frames, serve
from rescorer.service.workers.ipc import pack
from rescorer.service.workers.model_host import SharedModelHost, Tenant


class Counting:
    """A host that counts what it is told."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.loads = 0
        self.bad: set[str] = set()
        self.asking = threading.Lock()

    def load(self, label, folder):
        if label in self.bad:
            raise BundleError(f"{folder}: no such bundle folder")
        self.loads += 1
        self.loaded.append(label)

    def unload(self, label):
        self.loaded.remove(label)

    def measured(self, label, trie, only):
        assert self.asking.acquire(blocking=False), "one at a time"
        try:
            assert label in self.loaded
            return trie
        finally:
            self.asking.release()


DONE = st.tuples(
    st.sampled_from(["load", "unload", "leave"]), st.integers(0, 2), st.sampled_from(["m/1", "m/2", "n/1"])
)


@given(st.lists(DONE, max_size=30))
def test_a_bundle_is_in_memory_once_while_any_front_has_it(steps):
    host = Counting()
    shared = SharedModelHost(host)
    tenants = [Tenant(shared) for _ in range(3)]
    has: list[set[str]] = [set(), set(), set()]
    loads = 0
    for step, number, label in steps:
        if step == "load":
            loads += not any(label in each for each in has)
            tenants[number].load(label, Path(label))
            has[number].add(label)
        elif step == "unload":
            tenants[number].unload(label)
            has[number].discard(label)
        else:
            tenants[number].leave()
            has[number].clear()
        assert sorted(host.loaded) == sorted(set().union(*has))
        assert host.loads == loads


def test_a_bundle_that_cannot_be_loaded_is_nobodys():
    host = Counting()
    one, other = (Tenant(shared) for shared in [SharedModelHost(host)] * 2)
    host.bad.add("m/1")
    with pytest.raises(BundleError):
        one.load("m/1", Path("m/1"))
    host.bad.clear()
    other.load("m/1", Path("m/1"))
    one.leave()
    assert host.loaded == ["m/1"]


def test_fronts_that_load_score_and_leave_at_a_time_do_not_meet():
    host = Counting()
    shared = SharedModelHost(host)

    def front(number: int) -> None:
        for turn in range(50):
            tenant = Tenant(shared)
            tenant.load("m/1", Path("m/1"))
            assert tenant.measured("m/1", (number, turn)) == (number, turn)
            tenant.leave()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(front, range(4)))
    assert (host.loaded, shared.labels) == ([], set())


class Slow(Counting):
    """A host that takes its time to load, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let_go = threading.Event(), threading.Event()

    def load(self, label, folder):
        self.begun.set()
        assert self.let_go.wait(30)
        super().load(label, folder)


def test_a_front_that_drops_a_bundle_is_answered_while_another_loads_one():
    host = Slow()
    shared = SharedModelHost(host)
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(2) as pool, theirs, ours:
        loading = pool.submit(Tenant(shared).load, "m/2", Path("m/2"))
        try:
            assert host.begun.wait(30)
            pool.submit(serve, theirs, Tenant(shared))
            ours.settimeout(30)
            ours.sendall(pack({"id": 1, "do": "unload", "label": "m/1"}) + pack({"id": 2, "do": "greet"}))
            answers = frames(ours)
            assert next(answers).header["id"] == 2
        finally:
            host.let_go.set()
        assert next(answers).header["id"] == 1
        ours.shutdown(socket.SHUT_WR)
        loading.result(30)
