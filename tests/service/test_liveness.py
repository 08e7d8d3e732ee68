"""Health and metrics tell the truth about workers that load, stop, die or cannot load their models again."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer import BundleError, Hypothesis, NBestList
from rescorer.client import Client
from rescorer.pipeline import TrieScorer
from rescorer.service.server import explain_not_serving
from rescorer.service.workers import pool
from rescorer.service.workers.host import LoadedModels
from tests.support.prometheus import get_value, read_samples
from tests.support.repositories import add_version
from tests.support.servers import RunningServer, run_server, wait_until
from tests.support.slow_loading import SlowLoading
from tests.support.stubs import NOT_SERVING, SERVING
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow

LISTS = [NBestList("u1", (Hypothesis("the cat sat"), Hypothesis("the mat")), {"acoustic": (-1.0, -2.0)})]
NOTICE_S = 4.0
"""Twice the time within which a stopped or dead worker must be noticed, as the machine may be busy."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "models", neural=False)
    return tmp_path / "models"


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowLoading:
    return SlowLoading(tmp_path, monkeypatch)


@contextmanager
def run_with_worker(repository: Path, **settings) -> Iterator[RunningServer]:
    with run_server(
        None, **({"repository": repository, "workers": 1, "metrics_port": 0} | settings)
    ) as server:
        yield server


def read_state(server: RunningServer) -> tuple[int, float, float]:
    """Return the status of health, and the metrics ``ready`` and ``workers_alive``."""
    with grpc.insecure_channel(server.target) as channel:
        status = HealthStub(channel).Check(HealthCheckRequest(), timeout=20).status
    samples = read_samples(server.server.metrics_port)
    return status, get_value(samples, "ready"), get_value(samples, "workers_alive")


def find_worker(server: RunningServer) -> int:
    (pid,) = server.server.pool.workers[0].pids
    return pid


class Watcher:
    """Everything that health and the metrics said while the block ran."""

    def __init__(self, server: RunningServer) -> None:
        self.states: set[tuple[int, float, float]] = set()
        self._server, self._stop = server, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.states.add(read_state(self._server))


@contextmanager
def keep_core_busy(pid: int) -> Iterator[None]:
    """Run a process and a busy loop on the same core."""
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {core})
    loop = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    )
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({}, ""),
        ({"n_workers_alive": 0}, "no worker is able to score"),
        ({"n_models": 0}, "there is no model to serve"),
        ({"is_started": False, "n_models": 0, "n_workers_alive": 0}, "the models are being loaded"),
        ({"is_stopping": True}, "the server is stopping"),
        ({"failure": "the device is broken", "is_stopping": True}, "the device is broken"),
    ],
)
def test_a_server_serves_if_it_has_models_and_workers(state, reason):
    healthy = {"is_started": True, "is_stopping": False, "n_models": 2, "n_workers_alive": 1}
    assert explain_not_serving(**healthy | state) == reason


def test_answers_while_a_model_loads_longer_than_a_batch_may_take(repository, slow):
    with (
        run_with_worker(repository, worker_timeout_s=1, poll_s=0.2) as server,
        Client(server.target) as client,
        Watcher(server) as watcher,
    ):
        slow.delay("tiny/2", 5)
        add_version(repository, "tiny/2")
        times, labels, began_loading = [], [], time.monotonic()
        deadline = time.monotonic() + 30
        while labels[-1:] != ["tiny/2"] and time.monotonic() < deadline:
            began = time.monotonic()
            labels.append(client.rescore(LISTS, timeout_s=20)[0].model)
            times.append(time.monotonic() - began)
            time.sleep(0.02)
        assert labels[-1] == "tiny/2"
        assert time.monotonic() - began_loading > 5
        assert len(times) > 5
        assert max(times) < 3
    assert watcher.states == {(SERVING, 1, 1)}
    assert server.server.metrics.worker_restarts._value.get() == 0


def test_a_model_that_takes_too_long_to_load_is_refused(repository, slow):
    with run_with_worker(repository) as server, Client(server.target) as client:
        server.server.pool._load_timeout_s = 2  # the first version may take longer
        slow.delay("tiny/2", 20)
        add_version(repository, "tiny/2")
        changes = server.run(server.server.reloader.reload())
        assert changes.refused == {"tiny/2": "tiny/2: was not loaded within the 2 s of load_timeout_s"}
        assert client.rescore(LISTS)[0].model == "tiny/1"
        assert len(server.server.pool.workers[0].pids) == 1


def test_a_process_that_is_killed_while_it_loads_harms_nobody(repository, slow):
    with run_with_worker(repository) as server, Client(server.target) as client:
        worker = server.server.pool.workers[0]
        serving = find_worker(server)
        slow.delay("tiny/2", 20)
        add_version(repository, "tiny/2")
        reload = server.submit(server.server.reloader.reload())
        wait_until(lambda: len(worker.pids) == 2 and all(worker.pids))
        os.kill(worker.pids[1], signal.SIGKILL)
        assert "the process that loaded it died" in reload.result(30).refused["tiny/2"]
        assert (find_worker(server), client.rescore(LISTS)[0].model) == (serving, "tiny/1")
        slow.delay("tiny/2", 0)
        assert server.run(server.server.reloader.reload()).loaded == ["tiny/2"]
        assert client.rescore(LISTS)[0].model == "tiny/2"
        wait_until(lambda: len(worker.pids) == 1)  # the process of the old version has ended
        assert find_worker(server) != serving


def stop_and_continue(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def stop(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: None


@pytest.mark.parametrize(("harm", "survives"), [(stop_and_continue, True), (stop, False)])
def test_a_stopped_worker_is_noticed_and_replaced_unless_it_is_continued(repository, harm, survives):
    with run_with_worker(repository) as server, Client(server.target) as client:
        pid = find_worker(server)
        began = time.monotonic()
        mend = harm(pid)
        with ThreadPoolExecutor(1) as caller:
            call = caller.submit(client.rescore, LISTS, timeout_s=40)
            wait_until(lambda: read_state(server) == (NOT_SERVING, 0, 0), NOTICE_S)
            print(f"noticed after {time.monotonic() - began:.2f} s")
            mend()
            assert call.result()[0].model == "tiny/1"
        wait_until(lambda: read_state(server) == (SERVING, 1, 1))
        print(f"recovered after {time.monotonic() - began:.2f} s")
        assert (find_worker(server) == pid) is survives


def test_an_idle_worker_that_dies_is_replaced_without_any_traffic(repository, slow):
    with run_with_worker(repository) as server:
        slow.delay("tiny/1", 2)
        pid = find_worker(server)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: read_state(server) == (NOT_SERVING, 0, 0), NOTICE_S)
        wait_until(lambda: read_state(server) == (SERVING, 1, 1))
        assert find_worker(server) != pid


def test_a_worker_that_cannot_load_its_model_again_is_not_alive_until_it_can(repository):
    with run_with_worker(repository, worker_timeout_s=1) as server, Client(server.target) as client:
        model = repository / "tiny" / "1" / "ngram" / "model.arpa"
        intact = model.read_bytes()
        model.write_bytes(intact[:50])
        os.kill(find_worker(server), signal.SIGKILL)
        wait_until(lambda: read_state(server) == (NOT_SERVING, 0, 0), NOTICE_S)
        time.sleep(2)  # longer than worker_timeout_s
        assert read_state(server) == (NOT_SERVING, 0, 0)
        model.write_bytes(intact)
        wait_until(lambda: read_state(server) == (SERVING, 1, 1))
        assert client.rescore(LISTS)[0].model == "tiny/1"


def test_a_worker_whose_model_has_vanished_still_serves_the_others(repository, monkeypatch):
    monkeypatch.setattr(pool, "RELOAD_DELAY_S", 0.1)
    add_version(repository, "other/1")
    with (
        run_with_worker(repository) as server,
        Client(server.target, model="other/1") as client,
        Client(server.target, model="tiny") as other_client,
    ):
        vanished = (repository / "other").rename(repository.with_name("other"))
        assert client.rescore(LISTS)[0].model == "other/1"
        os.kill(find_worker(server), signal.SIGKILL)
        wait_until(lambda: other_client.rescore(LISTS, timeout_s=20)[0].model == "tiny/1")
        wait_until(lambda: read_state(server) == (SERVING, 1, 1))
        vanished.rename(repository / "other")
        wait_until(lambda: "other/1" in server.server.pool.workers[0].labels)
        assert client.rescore(LISTS)[0].model == "other/1"


def test_a_busy_core_raises_no_false_alarm(repository, slow):
    with run_with_worker(repository, poll_s=0.2) as server, Client(server.target) as client:
        with keep_core_busy(find_worker(server)), Watcher(server) as watcher:
            slow.delay("tiny/2", 3)
            add_version(repository, "tiny/2")
            deadline = time.monotonic() + 6
            while time.monotonic() < deadline:
                client.rescore(LISTS * 50, timeout_s=60)
        assert watcher.states == {(SERVING, 1, 1)}
        assert server.server.metrics.worker_restarts._value.get() == 0


def test_a_replaced_worker_never_loads_files_that_were_changed_in_place(repository):
    with run_with_worker(repository) as server, Client(server.target) as client:
        total = client.rescore(LISTS)[0].best.total
        folder = repository / "tiny" / "1"
        model, manifest = folder / "ngram" / "model.arpa", folder / "manifest.json"
        originals = model.read_text(), manifest.read_text()
        model.write_text(originals[0].replace("-0.9\tthe", "-3.9\tthe").replace("-0.4\t<s>", "-4.4\t<s>"))
        changed = json.loads(originals[1])
        changed["files"]["ngram/model.arpa"] = hashlib.sha256(model.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(changed))
        os.kill(find_worker(server), signal.SIGKILL)
        wait_until(lambda: read_state(server) == (NOT_SERVING, 0, 0), NOTICE_S)
        time.sleep(3)
        assert read_state(server) == (NOT_SERVING, 0, 0)
        model.write_text(originals[0])
        manifest.write_text(originals[1])
        wait_until(lambda: read_state(server) == (SERVING, 1, 1))
        assert client.rescore(LISTS)[0].best.total == pytest.approx(total)


def test_a_disk_that_fails_refuses_the_bundle_and_does_not_end_the_server(tmp_path):
    def fail(folder: Path, device: str) -> TrieScorer:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(BundleError, match="cannot be read: Input/output error"):
        LoadedModels("cpu", 1, fail).load("tiny/1", tmp_path)
