"""Tests of the Python clients with several servers, some of which start, stop or crash."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from rescorer import NBestList
from rescorer.bench.load import process_tree, rss_bytes
from rescorer.client import NO_RETRY, AsyncClient, Client
from rescorer.errors import ModelNotFound
from rescorer.protocol.v1 import models_pb2 as pb
from tests.support.clients import make_list
from tests.support.serve_command import run_serve_command
from tests.support.servers import run_server, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def two_servers(ngram_bundle):
    """Two equivalent servers, and a target that names both."""
    with run_server(ngram_bundle) as first, run_server(ngram_bundle) as second:
        yield first, second, f"{first.target},{second.target}"


def test_distributes_calls_over_servers(two_servers):
    first, second, target = two_servers

    def calls_since(before: tuple[int, int]) -> tuple[int, int]:
        return first.scorer.calls - before[0], second.scorer.calls - before[1]

    start = first.scorer.calls, second.scorer.calls
    with Client(target) as client:
        client.wait_ready(10)
        wait_until(lambda: client.rescore([make_list()]) and all(calls_since(start)))
        connected = first.scorer.calls, second.scorer.calls
        for _ in range(20):
            client.rescore([make_list()])
        assert calls_since(connected) == (10, 10)
        lists = [make_list(f"u{i}") for i in range(320)]
        answers = client.rescore_stream(lists)
        assert [answer.id for answer in answers] == [nbest.id for nbest in lists]
        assert min(calls_since(connected)) > 12


def test_avoids_a_server_that_is_still_starting(ngram_bundle):
    with (
        run_server(ngram_bundle) as ready_server,
        run_server(ngram_bundle, load=False) as starting_server,
        Client(f"{starting_server.target},{ready_server.target}", retry=NO_RETRY) as client,
    ):
        client.wait_ready(10)
        assert all(client.rescore([make_list()])[0].id == "u1" for _ in range(20))
        starting_server.load()
        wait_until(lambda: client.rescore([make_list()]) and starting_server.scorer.calls > 1)


def test_replaces_connections_that_the_server_closes(ngram_bundle):
    with (
        run_server(ngram_bundle, max_connection_age_s=0.3) as server,
        Client(server.target, retry=NO_RETRY) as client,
    ):
        client.rescore([make_list()])
        connections, end = set(), time.monotonic() + 2
        while time.monotonic() < end:
            client.rescore([make_list()])
            connections.update(list_connections(server.port))
    assert len(connections) > 2


def make_long_lists() -> list[NBestList]:
    return [make_list(f"u{i}", *(f"the cat sat on the mat {j}" for j in range(50))) for i in range(16)]


def count_outcomes_during(event, clients, lists) -> Counter:
    """Call ``event`` while clients rescore lists in threads; count complete answers and types of errors."""
    stop = threading.Event()
    ids = [nbest.id for nbest in lists]

    def rescore_repeatedly(client: Client) -> Counter:
        outcomes: Counter = Counter()
        while not stop.is_set():
            try:
                outcomes["answered"] += [answer.id for answer in client.rescore(lists)] == ids
            except Exception as error:
                outcomes[type(error).__name__] += 1
        return outcomes

    with ThreadPoolExecutor(len(clients)) as pool:
        callers = [pool.submit(rescore_repeatedly, client) for client in clients]
        try:
            event()
        finally:
            stop.set()
        return sum((caller.result() for caller in callers), Counter())


@pytest.mark.parametrize("stop_signal", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_loss_of_one_of_two_servers_does_not_affect_callers(ngram_bundle, tmp_path, stop_signal):
    lists = make_long_lists()
    with ExitStack() as stack:
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
        processes = [
            stack.enter_context(run_serve_command(ngram_bundle, folder, "--grace-s", "5"))[0]
            for folder in folders
        ]
        target = ",".join(f"127.0.0.1:{(folder / 'port').read_text().strip()}" for folder in folders)

        def stop_first_server() -> None:
            time.sleep(0.7)
            processes[0].send_signal(stop_signal)
            assert processes[0].wait(20) == (-9 if stop_signal == signal.SIGKILL else 0)
            time.sleep(0.5)

        with ExitStack() as client_stack:
            clients = [client_stack.enter_context(Client(target)) for _ in range(3)]
            answers = client_stack.enter_context(Client(target)).rescore_stream(lists * 40)
            first_answer = next(answers)
            outcomes = count_outcomes_during(stop_first_server, clients, lists)
            ids = [first_answer.id, *(answer.id for answer in answers)]
            assert ids == [nbest.id for nbest in lists * 40]
        assert set(outcomes) == {"answered"}
        assert outcomes["answered"] > 3


@pytest.mark.slow
def test_loss_of_a_worker_does_not_affect_callers(ngram_bundle, tmp_path):
    lists = make_long_lists()
    with run_serve_command(ngram_bundle, tmp_path, "--workers", "1") as (process, _):
        port = (tmp_path / "port").read_text().strip()

        def find_worker() -> int | None:
            """Find the child process that holds the models."""
            children = [pid for pid in process_tree(process.pid) if pid != process.pid]
            return max(children, key=rss_bytes, default=None)

        def kill_workers() -> None:
            for _ in range(2):
                time.sleep(0.7)
                killed = find_worker()
                assert killed is not None
                os.kill(killed, signal.SIGKILL)
                wait_until(lambda killed=killed: find_worker() not in (None, killed), 30)
            time.sleep(0.5)

        with Client(f"127.0.0.1:{port}") as first, Client(f"127.0.0.1:{port}") as second:
            assert set(count_outcomes_during(kill_workers, [first, second], lists)) == {"answered"}


def test_loss_of_the_only_server_is_reported_as_unavailable_without_retries(ngram_bundle, tmp_path):
    lists = make_long_lists()
    with run_serve_command(ngram_bundle, tmp_path) as (process, _):
        port = (tmp_path / "port").read_text().strip()

        def kill_server() -> None:
            time.sleep(0.5)
            process.kill()
            process.wait(20)
            time.sleep(0.2)

        with Client(f"127.0.0.1:{port}", retry=NO_RETRY) as client:
            outcomes = count_outcomes_during(kill_server, [client], lists)
            assert set(outcomes) == {"answered", "Unavailable"}


def test_retries_large_requests(two_servers):
    first, second, target = two_servers
    lists = [
        make_list(f"u{i}", *(f"the cat sat on the mat {j} " + "the " * 60 for j in range(60)))
        for i in range(45)  # two calls fit into the tokens that a server may have in flight
    ]
    with Client(target) as client:
        client.wait_ready(10)
        before = first.scorer.calls, second.scorer.calls
        while first.scorer.calls == before[0] or second.scorer.calls == before[1]:  # until both are connected
            client.rescore(lists[:1])
        first.scorer.gate.clear()
        second.scorer.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(client.rescore, lists) for _ in range(2)]
            wait_until(lambda: first.in_flight == second.in_flight == len(lists))
            second.scorer.gate.set()
            first.submit(first.server.grpc_server.stop(None)).result(10)  # as abruptly as a kill
            first.scorer.gate.set()
            assert [len(call.result(30)) for call in calls] == [45, 45]


def test_lists_and_describes_models(two_servers):
    *_, target = two_servers

    async def read_models_async() -> tuple:
        async with AsyncClient(target) as client:
            return await client.list_models(), await client.get_model("tiny")

    with Client(target) as client:
        results = [(client.list_models(), client.get_model()), asyncio.run(read_models_async())]
        with pytest.raises(ModelNotFound, match="tiny/9"):
            client.get_model("tiny/9")
    for summaries, model in results:
        assert (summaries[0].model, summaries[0].state) == ("tiny/1", pb.MODEL_STATE_SERVING)
        assert [language_model.name for language_model in model.language_models] == ["ngram"]


def test_uses_several_connections_in_turn(ngram_bundle):
    with run_server(ngram_bundle) as server, Client(server.target, connections=3) as client:
        for _ in range(6):
            client.rescore([make_list()])
        assert len(list_connections(server.port)) >= 3


def list_connections(port: int) -> list[str]:
    """List the client addresses of established TCP connections to a local port."""
    text = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for line in text.splitlines()]
    return [row[1] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
