"""Workers that two front ends share: loads, stopped and dead processes, seen from each front end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer import Hypothesis, NBestList
from rescorer.client import Client
from rescorer.client.connection import auth_metadata
from rescorer.protocol.v1 import admin_pb2
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceStub
from tests.support.front_ends import CONNECTIONS, RunningServer, run_two_front_ends, values_by_front_end
from tests.support.prometheus import get_value
from tests.support.repositories import add_version
from tests.support.servers import wait_until
from tests.support.slow_loading import SlowLoading
from tests.support.stubs import NOT_SERVING, SERVING
from tools.observation import find_workers

pytestmark = pytest.mark.slow

LISTS = [NBestList("u1", (Hypothesis("the cat sat"), Hypothesis("the mat")), {"acoustic": (-1.0, -2.0)})]
NOTICE_S = 4.0
"""Twice the time within which a stopped or dead worker must be noticed, as the machine may be busy."""
HEALTHY = {SERVING}, [1.0, 1.0], 1.0
UNHEALTHY = {NOT_SERVING}, [0.0, 0.0], 0.0


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowLoading:
    return SlowLoading(tmp_path, monkeypatch)


def read_state(server: RunningServer) -> tuple[set[int], list[float], float]:
    """Return the statuses of health over several connections, ``ready`` of each front end, and the number of
    workers alive."""
    ready, alive = values_by_front_end(server, "ready"), get_value(server.read_samples(), "workers_alive")
    return {read_health(server) for _ in range(CONNECTIONS // 2)}, ready, alive


def read_health(server: RunningServer) -> int:
    """Check health over a new connection, which reaches either front end."""
    with grpc.insecure_channel(server.target, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        return HealthStub(channel).Check(HealthCheckRequest(), timeout=20).status


def reload(server: RunningServer) -> admin_pb2.ReloadResponse:
    with grpc.insecure_channel(server.target) as channel:
        stub, login = AdminServiceStub(channel), auth_metadata(server.token)
        return stub.Reload(admin_pb2.ReloadRequest(), timeout=60, metadata=login)


class Callers:
    """Callers over many connections, one call at a time each, until the block ends."""

    def __init__(self, server: RunningServer) -> None:
        self.seconds: list[float] = []
        self.models: set[str] = set()
        self._server = server

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        with self._server.client() as client, ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(self._call_until, stop, client) for _ in range(2)]
            try:
                yield
            finally:
                stop.set()
            for call in calls:
                call.result()

    def _call_until(self, stop: threading.Event, client: Client) -> None:
        while not stop.wait(0.02):
            began = time.monotonic()
            self.models.add(client.rescore(LISTS, timeout_s=20)[0].model)
            self.seconds.append(time.monotonic() - began)


def test_both_front_ends_answer_while_a_model_loads_longer_than_a_batch_may_take(tmp_path, slow):
    with run_two_front_ends(tmp_path, "--worker-timeout-s", "3", "--poll-s", "0.2") as (_, server):
        serving, callers = find_workers(server.pid), Callers(server)
        with callers.running():
            slow.delay("tiny/2", 6)
            began = time.monotonic()
            add_version(server.folder.parent, "tiny/2")
            states = []
            while "tiny/2" not in callers.models and time.monotonic() < began + 40:
                states.append(read_state(server))
            time.sleep(0.5)
        print(f"{len(callers.seconds)} calls, the longest {max(callers.seconds):.2f} s")
        assert callers.models == {"tiny/1", "tiny/2"}
        assert max(callers.seconds) < 5
        assert [state for state in states if state != HEALTHY] == []
        assert all(values_by_front_end(server, "lists_total", model="tiny/1", code="OK"))
        assert get_value(server.read_samples(), "worker_restarts_total") == 0
        assert get_value(server.read_samples(), "front_end_restarts_total") == 0
        assert set(serving) <= set(find_workers(server.pid))


def test_a_model_that_takes_too_long_to_load_is_refused_by_all_front_ends(tmp_path, slow):
    with run_two_front_ends(tmp_path, "--load-timeout-s", "6") as (_, server), server.client() as client:
        serving = find_workers(server.pid)
        slow.delay("tiny/2", 60)
        add_version(server.folder.parent, "tiny/2")
        began = time.monotonic()
        changes = reload(server)
        assert time.monotonic() - began < 30
        reason = "tiny/2: was not loaded within the 6 s of load_timeout_s"
        assert dict(changes.refused) == {"tiny/2": reason}
        assert {client.rescore(LISTS)[0].model for _ in range(CONNECTIONS)} == {"tiny/1"}
        wait_until(lambda: find_workers(server.pid) == serving)
        slow.delay("tiny/2", 0)
        assert list(reload(server).loaded) == ["tiny/2"]


def test_a_process_that_is_killed_while_it_loads_harms_nobody(tmp_path, slow):
    with run_two_front_ends(tmp_path) as (_, server), server.client() as client:
        (serving,) = find_workers(server.pid)
        slow.delay("tiny/2", 20)
        add_version(server.folder.parent, "tiny/2")
        with ThreadPoolExecutor(1) as pool:
            changes = pool.submit(reload, server)
            wait_until(lambda: len(find_workers(server.pid)) == 2)
            (loading,) = set(find_workers(server.pid)) - {serving}
            time.sleep(1)  # until both front ends wait for it
            slow.delay("tiny/2", 0)
            os.kill(loading, signal.SIGKILL)
            assert "the process that loaded it died" in changes.result().refused["tiny/2"]
        assert {client.rescore(LISTS)[0].model for _ in range(CONNECTIONS)} == {"tiny/1"}
        assert find_workers(server.pid) == [serving]
        assert list(reload(server).loaded) == ["tiny/2"]


@pytest.mark.parametrize(("harm", "has_reloaded"), [(signal.SIGSTOP, True), (signal.SIGKILL, False)])
def test_all_front_ends_notice_a_stopped_or_dead_worker(tmp_path, slow, harm, has_reloaded):
    """Each process of the worker is stopped or killed in turn; after a reload the worker has two."""
    with run_two_front_ends(tmp_path) as (_, server), server.client() as client:
        if has_reloaded:
            add_version(server.folder.parent, "tiny/2")
            assert list(reload(server).loaded) == ["tiny/2"]
            client.rescore(LISTS)
        n_processes, newest = 1 + has_reloaded, f"tiny/{1 + has_reloaded}"
        wait_until(lambda: read_state(server) == HEALTHY)
        assert len(find_workers(server.pid)) == n_processes
        slow.delay(newest, 3)  # long enough that the loss can be seen
        began = time.monotonic()
        os.kill(find_workers(server.pid)[-1], harm)
        wait_until(lambda: read_state(server) == UNHEALTHY, NOTICE_S)
        print(f"noticed after {time.monotonic() - began:.2f} s")
        wait_until(lambda: read_state(server) == HEALTHY, 60)
        print(f"recovered after {time.monotonic() - began:.2f} s")
        for _ in range(CONNECTIONS):
            assert client.rescore(LISTS, timeout_s=20)[0].model == newest
