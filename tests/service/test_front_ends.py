"""``rescorer serve --front-ends 2`` as real processes: calls, metrics, reloads, crashes and stopping."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from rescorer import Hypothesis, NBestList, RescoredList, Rescorer
from rescorer.bench.load import process_tree
from rescorer.client import NO_RETRY
from rescorer.client.connection import auth_metadata
from rescorer.protocol.v1 import admin_pb2
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceStub
from rescorer.service.workers.pool import MAX_CONSECUTIVE_LOSSES
from tests.support.front_ends import CONNECTIONS, RunningServer, run_two_front_ends, values_by_front_end
from tests.support.prometheus import get_value, read_families
from tests.support.serve_command import SERVE_COMMAND
from tests.support.servers import wait_until
from tests.support.tiny_models import write_bundle
from tools.observation import find_workers, read_command_line, read_metrics

pytestmark = pytest.mark.slow

WORDS = ("the", "cat", "sat", "on", "mat", "zebra", "qqq")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with run_two_front_ends(tmp_path_factory.mktemp("server")) as (_, server):
        yield server


def make_list(name: str, seed: int) -> NBestList:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(0, 6))) for _ in range(4)]
    return NBestList(
        name, tuple(map(Hypothesis, texts)), {"acoustic": tuple(rng.uniform(-9, 0) for _ in texts)}
    )


@pytest.fixture(scope="module")
def lists():
    return [make_list(f"u{i}", i) for i in range(40)]


@pytest.fixture(scope="module")
def expected(server, lists):
    """The results of the library."""
    return Rescorer.load(server.folder / "1").rescore(lists)


def count_lists(server: RunningServer) -> int:
    """Count the lists that were answered or are in flight."""
    names = "rescorer_lists_total", "rescorer_in_flight_lists"
    return int(sum(count for (name, _), count in server.read_samples().items() if name in names))


def assert_equal_results(answers, expected) -> None:
    for answer, result in zip(answers, expected, strict=True):
        assert isinstance(answer, RescoredList), answer
        assert answer.id == result.id
        ranks = [hypothesis.original_rank for hypothesis in answer.hypotheses]
        assert ranks == [hypothesis.original_rank for hypothesis in result.hypotheses]
        totals = [hypothesis.total for hypothesis in answer.hypotheses]
        assert totals == pytest.approx([hypothesis.total for hypothesis in result.hypotheses], abs=1e-9)


def test_both_front_ends_answer_on_one_port_with_one_worker(server, lists, expected):
    with server.client() as client, ThreadPoolExecutor(4) as pool:
        for answers in pool.map(client.rescore, [lists] * CONNECTIONS):
            assert_equal_results(answers, expected)
    answered = values_by_front_end(server, "lists_total", model="tiny/1", code="OK")
    assert sum(answered) == CONNECTIONS * 40
    assert all(answered)
    assert len(server.front_end_pids()) == 2
    assert len(find_workers(server.pid)) == 1


def test_one_metrics_port_covers_all_processes(server, lists):
    samples = server.read_samples()
    assert get_value(samples, "front_ends_up") == 2
    assert get_value(samples, "workers_alive") == 1  # not one per front end
    assert get_value(samples, "worker_resident_memory_bytes", worker="0") > 10e6
    assert get_value(samples, "model_memory_bytes", model="tiny/1") > 0
    assert values_by_front_end(server, "ready") == [1, 1]
    memory = [dict(labels) for name, labels in samples if name == "process_resident_memory_bytes"]
    assert memory == [{}, {"front_end": "0"}, {"front_end": "1"}]
    families = read_families(server.metrics_port)
    kinds = {family.name: family.type for family in families}
    assert len(kinds) == len(families)
    assert (kinds["rescorer_calls"], kinds["rescorer_call_seconds"]) == ("counter", "histogram")
    before = read_metrics(server.metrics_port)
    with server.client() as client:
        for _ in range(8):
            client.rescore(lists)
    after = read_metrics(server.metrics_port)
    assert after["lists_total"] - before["lists_total"] == 8 * 40
    assert after["ready"] >= 1
    assert after["workers_alive"] == 1


def test_a_reload_request_reaches_all_front_ends(server, lists):
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
    assert all(values_by_front_end(server, "lists_total", model="tiny/2", code="OK"))
    wait_until(lambda: get_value(server.read_samples(), "model_memory_bytes", model="tiny/1") == 0)
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: values_by_front_end(server, "reloads_total", outcome="done") == [2, 2])


def test_callers_do_not_notice_a_crash_of_a_worker_or_a_front_end(server, lists, expected):
    stop = threading.Event()

    def call_until_stopped(_: int) -> int:
        answered = 0
        while not stop.is_set():
            assert_equal_results(client.rescore(lists), expected)
            answered += 1
        return answered

    with server.client() as client, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call_until_stopped, number) for number in range(4)]
        try:
            for victims in (find_workers(server.pid), server.front_end_pids()[:1]):
                time.sleep(0.3)
                os.kill(victims[0], signal.SIGKILL)
                wait_until(lambda gone=victims[0]: gone not in process_tree(server.pid))
                wait_until(
                    lambda: (
                        get_value(server.read_samples(), "front_ends_up")
                        == get_value(server.read_samples(), "workers_alive") + 1
                        == 2
                    ),
                    30,
                )
            time.sleep(0.3)
        finally:
            stop.set()
        assert all(call.result() > 2 for call in calls)
    samples = server.read_samples()
    assert get_value(samples, "worker_restarts_total") == get_value(samples, "front_end_restarts_total") == 1
    assert (len(server.front_end_pids()), len(find_workers(server.pid))) == (2, 1)


def test_processes_end_when_the_supervisor_is_killed(server):
    """This must be the last test that uses the server."""
    children = process_tree(server.pid)[1:]
    assert len(children) == 3
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not any(b"rescorer" in read_command_line(pid) for pid in children))


def test_sigterm_lets_calls_finish_in_all_front_ends(tmp_path):
    texts = tuple(Hypothesis(f"the cat sat on the mat number {i} of many") for i in range(200))
    long = [NBestList(f"u{i}", texts, {"acoustic": (-1.0,) * len(texts)}) for i in range(8)]
    # The kernel decides which front end gets a connection: each must have room for all calls.
    room = ("--max-in-flight-tokens", "4000000")
    with run_two_front_ends(tmp_path, *room) as (process, server), ThreadPoolExecutor(CONNECTIONS) as pool:
        with server.client(retry=NO_RETRY) as client:
            for _ in range(CONNECTIONS):
                client.rescore(long[:1])
            # Without a deadline: on a busy machine, a call that could miss its own would be refused.
            calls = [pool.submit(client.rescore, long, timeout_s=None) for _ in range(CONNECTIONS)]

            def all_have_arrived() -> bool:
                for call in calls:
                    if call.done():
                        call.result()  # one that was refused says why
                return count_lists(server) == CONNECTIONS * (1 + len(long))

            wait_until(all_have_arrived)
            process.send_signal(signal.SIGTERM)
            assert all(len(call.result(60)) == 8 for call in calls)
        assert process.wait(30) == 0
        assert not (tmp_path / "port").exists()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line.get("front_end") for line in lines if line["event"] == "stopped"} == {0, 1, None}
    assert {line["front_end"] for line in lines if line["event"] == "call answered"} == {0, 1}


def test_replaces_a_hanging_front_end_and_keeps_restarting_a_worker_that_works(tmp_path, lists):
    with (
        run_two_front_ends(tmp_path, "--worker-timeout-s", "10") as (process, server),
        server.client() as client,
    ):
        hanging_pid = server.front_end_pids()[0]
        os.kill(hanging_pid, signal.SIGSTOP)
        wait_until(lambda: hanging_pid not in process_tree(server.pid), 60)
        wait_until(server.is_whole, 60)
        for _ in range(MAX_CONSECUTIVE_LOSSES + 1):
            assert [answer.id for answer in client.rescore(lists)] == [nbest.id for nbest in lists]
            (victim,) = find_workers(server.pid)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda gone=victim: find_workers(server.pid) not in ([], [gone]), 60)
        assert [answer.id for answer in client.rescore(lists)] == [nbest.id for nbest in lists]
        assert process.poll() is None


def test_stops_although_a_front_end_hangs(tmp_path):
    with run_two_front_ends(tmp_path, "--grace-s", "0") as (process, server):
        hanging_pid = server.front_end_pids()[0]
        os.kill(hanging_pid, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert b"rescorer" not in read_command_line(hanging_pid)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line for line in lines if line["level"] == "error"] == []


def test_an_unusable_bundle_ends_the_server_with_its_error(tmp_path):
    bundle = write_bundle(tmp_path, neural=False)
    (bundle / "text.json").write_text("{}")
    command = (*SERVE_COMMAND, "--bundle", bundle, "--port", "0", "--front-ends", "2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith(f"rescorer: {bundle}")
