"""``rescorer serve --front-ends 2`` as processes: one port, one worker, whoever is killed, told or asked."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from prometheus_client import Metric

from rescorer import ConfigError, Hypothesis, NBestList, RescoredList, Rescorer
from rescorer.cli.top.scrape import compare, read_metrics
from rescorer.client import NO_RETRY, Client
from rescorer.client.identity import auth_metadata
from rescorer.load.resources import process_tree
from rescorer.protocol.v1 import admin_pb2
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceStub
from rescorer.service.frontends.__main__ import derive_front_end_settings
from rescorer.service.frontends.metrics import merge_metrics
from rescorer.service.net.addresses import check_free, keep_port
from rescorer.service.net.clients_file import new_token
from rescorer.service.preflight import load_settings
from rescorer.service.workers.pool import MAX_CONSECUTIVE_LOSSES
from rescorer.types import Weights
from tests.support.prometheus import get_value, read_families, read_samples
from tests.support.serve_command import SERVE_COMMAND, run_serve_command
from tests.support.servers import wait_until
from tests.support.tiny_models import write_bundle
from tools.chaos.run import format_client
from tools.support.processes import find_workers, read_command_line
from tools.support.server_log import read_metrics_port

pytestmark = pytest.mark.slow

WORDS = ("the", "cat", "sat", "on", "mat", "zebra", "qqq")
CONNECTIONS = 20
"""Each is at random to one of the fronts; that all are to the same one happens to nobody."""
WEIGHTS = Weights("default", {"acoustic": 1.0}, {"mixture": 2.0}, 0.1, -1.0, {"ngram": 1.0})


class Running(NamedTuple):
    """A server of two fronts and one worker, with a repository."""

    pid: int
    port: int
    metrics_port: int
    folder: Path
    """Of the repository's one name."""
    token: str
    """Of somebody with all roles."""

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, **options) -> Client:
        return Client(self.target, token=self.token, connections=CONNECTIONS, **options)

    def told(self):
        return read_samples(self.metrics_port)

    def is_whole(self) -> bool:
        told = self.told()
        return (get_value(told, "front_ends_up"), get_value(told, "workers_alive")) == (2, 1)

    def fronts(self) -> list[int]:
        return [
            pid
            for pid in process_tree(self.pid)[1:]
            if b"rescorer.service.frontends" in read_command_line(pid)
        ]


@contextmanager
def two_fronts(tmp_path: Path, *more: str):
    repository, token = tmp_path / "models", new_token()
    write_bundle(repository, WEIGHTS, neural=False)
    access = tmp_path / "access.toml"
    access.write_text(format_client("all", ["score", "admin"], token))
    options = ("--repository", repository, "--access", access, "--admin", "--metrics-port", "0", *more)
    with run_serve_command(None, tmp_path, "--front-ends", "2", "--log-format", "json", *options) as (
        process,
        _,
    ):
        port = int((tmp_path / "port").read_text())
        at = read_metrics_port(tmp_path / "log")
        yield process, Running(process.pid, port, at, repository / "tiny", token)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with two_fronts(tmp_path_factory.mktemp("server")) as (_, server):
        yield server


def a_list(name: str, seed: int) -> NBestList:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(0, 6))) for _ in range(4)]
    return NBestList(
        name, tuple(map(Hypothesis, texts)), {"acoustic": tuple(rng.uniform(-9, 0) for _ in texts)}
    )


@pytest.fixture(scope="module")
def lists():
    return [a_list(f"u{i}", i) for i in range(40)]


@pytest.fixture(scope="module")
def wanted(server, lists):
    """What the library says."""
    return Rescorer.load(server.folder / "1").rescore(lists)


def by_front(server: Running, name: str, **labels: str) -> list[float]:
    return [get_value(server.told(), name, front_end=str(number), **labels) for number in range(2)]


def lists_come(server: Running) -> int:
    """Answered, or in flight."""
    names = "rescorer_lists_total", "rescorer_in_flight_lists"
    return int(sum(count for (name, _), count in server.told().items() if name in names))


def assert_alike(answers, wanted) -> None:
    for answer, each in zip(answers, wanted, strict=True):
        assert isinstance(answer, RescoredList), answer
        assert (answer.id, [one.original_rank for one in answer.hypotheses]) == (
            each.id,
            [one.original_rank for one in each.hypotheses],
        )
        found = [one.total for one in answer.hypotheses]
        assert found == pytest.approx([one.total for one in each.hypotheses], abs=1e-9)


def test_callers_of_one_port_are_answered_by_both_fronts_and_one_scorer(server, lists, wanted):
    with server.client() as client, ThreadPoolExecutor(4) as pool:
        for answers in pool.map(client.rescore, [lists] * CONNECTIONS):
            assert_alike(answers, wanted)
    answered = by_front(server, "lists_total", model="tiny/1", code="OK")
    assert sum(answered) == CONNECTIONS * 40
    assert all(answered)
    assert len(server.fronts()) == 2
    assert len(find_workers(server.pid)) == 1


def test_one_metrics_port_tells_of_all_processes(server, lists):
    told = server.told()
    assert get_value(told, "front_ends_up") == 2
    assert get_value(told, "workers_alive") == 1  # one, not one a front
    assert get_value(told, "worker_resident_memory_bytes", worker="0") > 10e6
    assert get_value(told, "model_memory_bytes", model="tiny/1") > 0
    assert by_front(server, "ready") == [1, 1]
    memory = [dict(labels) for name, labels in told if name == "process_resident_memory_bytes"]
    assert memory == [{}, {"front_end": "0"}, {"front_end": "1"}]
    every = read_families(server.metrics_port)
    kinds = {each.name: each.type for each in every}
    assert len(kinds) == len(every)
    assert (kinds["rescorer_calls"], kinds["rescorer_call_seconds"]) == ("counter", "histogram")
    at = f"127.0.0.1:{server.metrics_port}"
    before = read_metrics(at)
    with server.client() as client:
        for _ in range(8):
            client.rescore(lists)
    picture = compare(before, read_metrics(at))
    assert picture.lists_per_s * picture.seconds == pytest.approx(8 * 40)
    assert (picture.ready, picture.workers) == (True, 1)


def test_a_reload_that_one_front_is_asked_for_is_done_by_all(server, lists):
    newer = server.folder / "2"
    shutil.copytree(server.folder / "1", newer)
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with grpc.insecure_channel(server.target) as channel:
        request, login = admin_pb2.ReloadRequest(), auth_metadata(server.token)
        changes = AdminServiceStub(channel).Reload(request, timeout=60, metadata=login)
    assert (list(changes.loaded), dict(changes.refused)) == (["tiny/2"], {})
    with server.client() as client:
        for _ in range(CONNECTIONS):
            assert client.rescore(lists[:1])[0].model == "tiny/2"
    assert all(by_front(server, "lists_total", model="tiny/2", code="OK"))
    wait_until(lambda: get_value(server.told(), "model_memory_bytes", model="tiny/1") == 0)
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: by_front(server, "reloads_total", outcome="done") == [2, 2])


def test_callers_do_not_see_the_end_of_a_scorer_or_of_a_front(server, lists, wanted):
    over = threading.Event()

    def caller(_: int) -> int:
        answered = 0
        while not over.is_set():
            assert_alike(client.rescore(lists), wanted)
            answered += 1
        return answered

    with server.client() as client, ThreadPoolExecutor(4) as pool:
        calling = [pool.submit(caller, each) for each in range(4)]
        try:
            for victims in (find_workers(server.pid), server.fronts()[:1]):
                time.sleep(0.3)
                os.kill(victims[0], signal.SIGKILL)
                wait_until(lambda gone=victims[0]: gone not in process_tree(server.pid))
                wait_until(
                    lambda: (
                        get_value(server.told(), "front_ends_up")
                        == get_value(server.told(), "workers_alive") + 1
                        == 2
                    ),
                    30,
                )
            time.sleep(0.3)
        finally:
            over.set()
        assert all(each.result() > 2 for each in calling)
    told = server.told()
    assert (get_value(told, "worker_restarts_total"), get_value(told, "front_end_restarts_total")) == (1, 1)
    assert (len(server.fronts()), len(find_workers(server.pid))) == (2, 1)


def test_a_supervisor_that_is_killed_leaves_nobody_behind(server):
    """The last one that asks this server."""
    children = process_tree(server.pid)[1:]
    assert len(children) == 3
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not any(b"rescorer" in read_command_line(each) for each in children))


def test_sigterm_lets_calls_in_flight_finish_in_all_fronts(tmp_path):
    texts = tuple(Hypothesis(f"the cat sat on the mat number {i} of many") for i in range(400))
    long = [NBestList(f"u{i}", texts, {"acoustic": (-1.0,) * len(texts)}) for i in range(8)]
    with two_fronts(tmp_path) as (process, server), ThreadPoolExecutor(CONNECTIONS) as pool:
        with server.client(retry=NO_RETRY) as client:
            for _ in range(CONNECTIONS):
                client.rescore(long[:1])
            calls = [pool.submit(client.rescore, long) for _ in range(CONNECTIONS)]
            wait_until(lambda: lists_come(server) == CONNECTIONS * (1 + len(long)), 30)
            process.send_signal(signal.SIGTERM)
            assert all(len(call.result(60)) == 8 for call in calls)
        assert process.wait(30) == 0
        assert not (tmp_path / "port").exists()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line.get("front_end") for line in lines if line["event"] == "stopped"} == {0, 1, None}
    assert {line["front_end"] for line in lines if line["event"] == "call answered"} == {0, 1}


def test_a_front_that_hangs_is_replaced_and_a_scorer_that_works_is_started_on(tmp_path, lists):
    with two_fronts(tmp_path, "--worker-timeout-s", "4") as (process, server), server.client() as client:
        hung = server.fronts()[0]
        os.kill(hung, signal.SIGSTOP)
        wait_until(lambda: hung not in process_tree(server.pid), 60)
        wait_until(server.is_whole, 60)
        for _ in range(MAX_CONSECUTIVE_LOSSES + 1):
            assert all(isinstance(each, RescoredList) for each in client.rescore(lists))
            (victim,) = find_workers(server.pid)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda gone=victim: find_workers(server.pid) not in ([], [gone]), 60)
        assert all(isinstance(each, RescoredList) for each in client.rescore(lists))
        assert process.poll() is None


@pytest.mark.slow
def test_a_front_that_hangs_does_not_keep_the_server_from_stopping(tmp_path):
    with two_fronts(tmp_path, "--grace-s", "0") as (process, server):
        hung = server.fronts()[0]
        os.kill(hung, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert b"rescorer" not in read_command_line(hung)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line for line in lines if line["level"] == "error"] == []


def test_what_fronts_cannot_load_ends_the_server_with_the_reason(tmp_path):
    bundle = write_bundle(tmp_path, neural=False)
    (bundle / "text.json").write_text("{}")
    command = (*SERVE_COMMAND, "--bundle", bundle, "--port", "0", "--front-ends", "2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith(f"rescorer: {bundle}")


def test_what_fronts_tell_is_one_server_s():
    one = """
# HELP rescorer_lists_total Lists.
# TYPE rescorer_lists_total counter
rescorer_lists_total{model="m/1",code="OK"} 3
# TYPE rescorer_models_refused gauge
rescorer_models_refused 1
# TYPE rescorer_workers_alive gauge
rescorer_workers_alive 2
"""
    other = one.replace("} 3", "} 4").replace("refused 1", "refused 0")
    alive = Metric("rescorer_workers_alive", "Scorers that can score.", "gauge")
    alive.add_sample(alive.name, {}, 3)
    told = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in merge_metrics({0: one, 2: other}, [alive])
        for sample in family.samples
    }
    labels = ("code", "OK"), ("model", "m/1")
    assert told == {
        ("rescorer_lists_total", labels[0], ("front_end", "0"), labels[1]): 3,
        ("rescorer_lists_total", labels[0], ("front_end", "2"), labels[1]): 4,
        ("rescorer_models_refused",): 1,
        ("rescorer_workers_alive",): 3,
    }


def test_a_port_that_is_kept_is_ours_alone_whether_we_listen_or_not():
    with keep_port("127.0.0.1", 0, "the service") as kept:
        address = kept.getsockname()
        for _ in range(2):
            with pytest.raises(ConfigError, match="cannot listen"):
                check_free(*address, "another")
            with pytest.raises(ConfigError, match="cannot listen"):
                keep_port(*address, "another")
            # As gRPC listens in a front.
            with socket.create_server(address, reuse_port=True), pytest.raises(ConfigError):
                check_free(*address, "another")
    check_free(*address, "another")


def test_each_front_has_its_part_of_the_limits_and_room_for_a_full_message():
    defaults = derive_front_end_settings(load_settings(bundle="b", front_ends=2), 7)
    assert (defaults.max_in_flight_lists, defaults.max_streams, defaults.port) == (256, 128, 7)
    assert defaults.max_in_flight_tokens == 524_288  # as many as one message may hold
    many = derive_front_end_settings(
        load_settings(bundle="b", front_ends=7, max_in_flight_tokens=7_000_000), 7
    )
    assert (many.max_in_flight_lists, many.max_in_flight_tokens) == (128, 1_000_000)


@pytest.mark.parametrize(
    ("given", "told"), [({"workers": 0}, "cannot be shared"), ({"shadow": "./s"}, "a shadow of its own")]
)
def test_what_several_fronts_cannot_have_is_told(given, told):
    with pytest.raises(ConfigError, match=told):
        load_settings(bundle="b", front_ends=2, **given)
