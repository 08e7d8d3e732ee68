"""Clients of several servers: who is asked, and what is seen when one ends or is only starting."""

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

from rescorer import RescoredList
from rescorer.client import NO_RETRY, AsyncClient, Client
from rescorer.errors import ModelNotFound
from rescorer.load.resources import process_tree, rss_bytes
from rescorer.protocol.v1 import models_pb2 as pb
from tests.support.clients import make_list
from tests.support.serve_command import run_serve_command
from tests.support.servers import run_server, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def two(ngram_bundle):
    """Two servers that are alike, and the target that names both."""
    with run_server(ngram_bundle) as one, run_server(ngram_bundle) as other:
        yield one, other, f"{one.target},{other.target}"


def test_calls_take_turns_between_servers(two):
    one, other, target = two
    before = one.scorer.calls, other.scorer.calls
    with Client(target) as client:
        client.wait_ready(10)
        wait_until(
            lambda: (
                client.rescore([make_list()])
                and one.scorer.calls > before[0]
                and other.scorer.calls > before[1]
            )
        )
        before = one.scorer.calls, other.scorer.calls
        for _ in range(20):
            client.rescore([make_list()])
        assert (one.scorer.calls - before[0], other.scorer.calls - before[1]) == (10, 10)
        bulk = [make_list(f"u{i}") for i in range(320)]
        assert [each.id for each in client.rescore_stream(bulk)] == [each.id for each in bulk]
        assert one.scorer.calls - before[0] > 12 < other.scorer.calls - before[1]


def test_a_server_that_is_only_starting_is_not_asked(ngram_bundle):
    with (
        run_server(ngram_bundle) as one,
        run_server(ngram_bundle, load=False) as other,
        Client(f"{other.target},{one.target}", retry=NO_RETRY) as client,
    ):
        client.wait_ready(10)
        assert all(isinstance(client.rescore([make_list()])[0], RescoredList) for _ in range(20))
        other.load()
        wait_until(lambda: client.rescore([make_list()]) and other.scorer.calls > 1)


def test_connections_come_to_an_end_unnoticed(ngram_bundle):
    with (
        run_server(ngram_bundle, max_connection_age_s=0.3) as server,
        Client(server.target, retry=NO_RETRY) as client,
    ):
        client.rescore([make_list()])
        seen, until_s = set(), time.monotonic() + 2
        while time.monotonic() < until_s:
            client.rescore([make_list()])
            seen.update(connected_to(server.port))
    assert len(seen) > 2


def answered_while(clients, lists, happening) -> Counter:
    """What callers in threads of their own get while something happens: answers, or kinds of faults."""
    over = threading.Event()

    def caller(client: Client) -> Counter:
        seen: Counter = Counter()
        while not over.is_set():
            try:
                seen["answered"] += [each.id for each in client.rescore(lists)] == [each.id for each in lists]
            except Exception as fault:
                seen[type(fault).__name__] += 1
        return seen

    with ThreadPoolExecutor(len(clients)) as pool:
        calls = [pool.submit(caller, client) for client in clients]
        try:
            happening()
        finally:
            over.set()
        return sum((each.result() for each in calls), Counter())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_no_caller_sees_the_end_of_one_of_two_servers(ngram_bundle, tmp_path, how):
    lists = [make_list(f"u{i}", *(f"the cat sat on the mat {j}" for j in range(50))) for i in range(16)]
    with ExitStack() as servers:
        folders = [tmp_path / name for name in ("one", "other")]
        for folder in folders:
            folder.mkdir()
        processes = [
            servers.enter_context(run_serve_command(ngram_bundle, folder, "--grace-s", "5"))[0]
            for folder in folders
        ]
        target = ",".join(f"127.0.0.1:{(folder / 'port').read_text().strip()}" for folder in folders)

        def happening() -> None:
            time.sleep(0.7)
            processes[0].send_signal(how)
            assert processes[0].wait(20) == (-9 if how == signal.SIGKILL else 0)
            time.sleep(0.5)

        with ExitStack() as made:
            clients = [made.enter_context(Client(target)) for _ in range(3)]
            bulk = [made.enter_context(Client(target)).rescore_stream(lists * 40)]
            first = next(bulk[0])
            seen = answered_while(clients, lists, happening)
            assert first.id == "u0"
            assert [each.id for each in bulk[0]] == [each.id for each in lists * 40][1:]
        assert set(seen) == {"answered"}
        assert seen["answered"] > 3


@pytest.mark.slow
def test_no_caller_sees_the_end_of_a_scoring_process(ngram_bundle, tmp_path):
    lists = [make_list(f"u{i}", *(f"the cat sat on the mat {j}" for j in range(50))) for i in range(16)]
    with run_serve_command(ngram_bundle, tmp_path, "--workers", "1") as (process, _):
        port = (tmp_path / "port").read_text().strip()

        def scorer() -> int | None:
            """The one of the server's children that has the models."""
            children = [pid for pid in process_tree(process.pid) if pid != process.pid]
            return max(children, key=rss_bytes, default=None)

        def happening() -> None:
            for _ in range(2):
                time.sleep(0.7)
                killed = scorer()
                assert killed is not None
                os.kill(killed, signal.SIGKILL)
                wait_until(lambda killed=killed: scorer() not in (None, killed), 30)
            time.sleep(0.5)

        with Client(f"127.0.0.1:{port}") as one, Client(f"127.0.0.1:{port}") as other:
            assert set(answered_while([one, other], lists, happening)) == {"answered"}


def test_without_retries_a_killed_server_is_unavailable_and_nothing_else(ngram_bundle, tmp_path):
    lists = [make_list(f"u{i}", *(f"the cat sat on the mat {j}" for j in range(50))) for i in range(16)]
    with run_serve_command(ngram_bundle, tmp_path) as (process, _):
        port = (tmp_path / "port").read_text().strip()

        def happening() -> None:
            time.sleep(0.5)
            process.kill()
            process.wait(20)
            time.sleep(0.2)

        with Client(f"127.0.0.1:{port}", retry=NO_RETRY) as client:
            assert set(answered_while([client], lists, happening)) == {"answered", "Unavailable"}


def test_large_requests_are_retried_too(two):
    one, other, target = two
    lists = [
        make_list(f"u{i}", *(f"the cat sat on the mat {j} " + "the " * 60 for j in range(60)))
        for i in range(60)
    ]
    with Client(target) as client:
        client.wait_ready(10)
        one.scorer.gate.clear()
        other.scorer.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(client.rescore, lists) for _ in range(2)]
            wait_until(lambda: one.in_flight == other.in_flight == len(lists))
            other.scorer.gate.set()
            one.submit(one.server._server.stop(None)).result(10)  # as abruptly as a kill
            one.scorer.gate.set()
            assert [len(call.result(30)) for call in calls] == [60, 60]


def test_models_are_told(two):
    *_, target = two

    async def told() -> tuple:
        async with AsyncClient(target) as client:
            return await client.list_models(), await client.get_model("tiny")

    with Client(target) as client:
        listed, model = client.list_models(), client.get_model()
        with pytest.raises(ModelNotFound, match="tiny/9"):
            client.get_model("tiny/9")
    for summary, one in ((listed[0], model), (lambda pair: (pair[0][0], pair[1]))(asyncio.run(told()))):
        assert (summary.model, summary.state) == ("tiny/1", pb.MODEL_STATE_SERVING)
        assert [each.name for each in one.language_models] == ["ngram"]


def test_several_connections_are_taken_in_turn(ngram_bundle):
    with run_server(ngram_bundle) as server, Client(server.target, connections=3) as client:
        for _ in range(6):
            client.rescore([make_list()])
        assert len(connected_to(server.port)) >= 3


def connected_to(port: int) -> list[str]:
    """Established TCP connections of this machine to a port of the loopback address."""
    text = "".join(Path(f"/proc/net/{each}").read_text() for each in ("tcp", "tcp6"))
    lines = [line.split() for line in text.splitlines()]
    return [each[1] for each in lines if each[2].endswith(f":{port:04X}") and each[3] == "01"]
