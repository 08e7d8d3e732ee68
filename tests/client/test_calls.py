"""Tests of the Python clients' calls: errors, read-ahead and readiness."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

from rescorer import (
    ConfigError,
    FormatError,
    InvalidList,
    LimitExceeded,
    ModelNotFound,
    RescoredList,
    ScoringError,
)
from rescorer.client import NO_RETRY, AsyncClient, Client
from rescorer.client.calls import MAX_BULK_LISTS
from rescorer.client.connection import DEFAULT_OPEN_CALLS
from rescorer.errors import DeadlineExceeded, Overloaded, Unavailable
from tests.conftest import REPOSITORY
from tests.support.clients import make_list, rescore_async
from tests.support.servers import run_server, wait_until


def test_errors_take_the_place_of_lists_that_cannot_be_sent(client, server):
    read_error = FormatError("not JSON", file="lists.jsonl", line=3)
    items = [
        make_list("a"),
        read_error,
        make_list("b", "\ud800"),
        make_list("c", "x" * 5_000_000),
        make_list("d"),
    ]
    for answers in (
        client.rescore_each(items),
        list(client.rescore_stream(items)),
        *asyncio.run(rescore_async(server.target, items)),
    ):
        types = [type(answer) for answer in answers]
        assert types == [RescoredList, FormatError, InvalidList, LimitExceeded, RescoredList]
        assert answers[1] is read_error
        assert (answers[0].id, answers[4].id) == ("a", "d")


@pytest.mark.slow
def test_refuses_items_that_are_not_lists(client):
    with pytest.raises(TypeError, match=r"lists\[0\] is of type dict; expected an NBestList"):
        client.rescore([{"id": "u1"}])


def test_raises_the_error_that_a_status_stands_for(client, server, monkeypatch):
    with pytest.raises(ConfigError, match="the bundle has: default"):
        client.rescore([make_list()], "other")
    with pytest.raises(ConfigError, match="the bundle has: default"):
        list(client.rescore_stream([make_list()], "other"))
    with pytest.raises(LimitExceeded, match="at most 128"):
        client.rescore([make_list()] * 129)
    with Client(server.target, model="tiny/7") as other, pytest.raises(ModelNotFound, match="tiny/1"):
        other.rescore([make_list()])
    with (
        Client(server.target, max_message_bytes=2000) as small,
        pytest.raises(LimitExceeded, match="this cl"),
    ):
        small.rescore([make_list()] * 100)
    monkeypatch.setattr(server.scorer, "error", RuntimeError("secret"))
    with pytest.raises(ScoringError, match="internal error") as caught:
        client.rescore([make_list()])
    assert "secret" not in str(caught.value)
    with pytest.raises(ScoringError, match="internal error"):
        asyncio.run(rescore_async(server.target, [make_list()]))


def test_raises_timeouts_and_overload(client, server):
    server.scorer.gate.clear()
    try:
        with pytest.raises(DeadlineExceeded):
            client.rescore([make_list()], timeout_s=0.2)
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(client.rescore, [make_list()] * 128) for _ in range(2)]
            wait_until(lambda: server.in_flight == 256)
            with Client(server.target, retry=NO_RETRY) as other, pytest.raises(Overloaded):
                other.rescore([make_list()])
            server.scorer.gate.set()
            assert [len(call.result()) for call in calls] == [128, 128]
    finally:
        server.scorer.gate.set()


def test_distinguishes_missing_servers_from_servers_that_are_not_ready(bundle, unused_port):
    async def wait_ready(target: str) -> None:
        async with AsyncClient(target) as client:
            await client.wait_ready(1.0)

    unused_target = f"127.0.0.1:{unused_port}"
    refused = f"^{unused_target}: connection refused by {unused_target}"
    with Client(unused_target, retry=NO_RETRY) as client:
        with pytest.raises(Unavailable, match=f"connection refused by {unused_target}"):
            client.rescore([make_list()])
        with pytest.raises(DeadlineExceeded, match=refused):
            client.wait_ready(1.0)
    with pytest.raises(DeadlineExceeded, match=refused):
        asyncio.run(wait_ready(unused_target))
    with run_server(bundle, load=False) as server, Client(server.target, retry=NO_RETRY) as client:
        with pytest.raises(Unavailable, match="NOT_SERVING"):
            client.rescore([make_list()])
        loading = f"^{server.target}: NOT_SERVING, still loading its models"
        with pytest.raises(DeadlineExceeded, match=loading):
            client.wait_ready(1.0)
        with pytest.raises(DeadlineExceeded, match=loading):
            asyncio.run(wait_ready(server.target))
        server.load()
        client.wait_ready(5)


def test_stream_limits_read_ahead_and_can_be_closed_early(client, server):
    numbers = itertools.count()
    endless_lists = (make_list(f"u{number}") for number in numbers)
    answers = client.rescore_stream(endless_lists)
    assert [next(answers).id for _ in range(3)] == ["u0", "u1", "u2"]
    answers.close()
    assert next(numbers) <= MAX_BULK_LISTS * (DEFAULT_OPEN_CALLS + 2)

    async def read_first_id() -> str:
        async with AsyncClient(server.target) as client:
            answers = client.rescore_stream(make_list(f"u{i}") for i in itertools.count())
            async for answer in answers:
                await answers.aclose()
                return answer.id

    assert asyncio.run(read_first_id()) == "u0"


def test_errors_of_the_input_are_raised_after_earlier_answers(client, server):
    def failing_lists():
        yield from (make_list(f"u{i}") for i in range(40))
        raise FormatError("cannot be opened", file="x")

    async def read_stream_async() -> None:
        async with AsyncClient(server.target) as client:
            async for answer in client.rescore_stream(failing_lists()):
                answered_ids.append(answer.id)

    def read_stream() -> None:
        for answer in client.rescore_stream(failing_lists()):
            answered_ids.append(answer.id)

    answered_ids: list[str] = []
    with pytest.raises(FormatError, match="cannot be opened"):
        read_stream()
    assert answered_ids == [f"u{i}" for i in range(MAX_BULK_LISTS)]
    answered_ids.clear()
    with pytest.raises(FormatError, match="cannot be opened"):
        asyncio.run(read_stream_async())
    assert answered_ids == [f"u{i}" for i in range(MAX_BULK_LISTS)]


def test_client_imports_neither_torch_nor_kenlm():
    """The client imports none of the project's dependencies outside gRPC, not even numpy."""
    code = "import sys, rescorer.client; print(*{name.split('.')[0] for name in sys.modules})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    dependencies = {re.split("[>=]", line)[0].replace("-", "_") for line in project["dependencies"]}
    assert "grpc" in process.stdout.split()
    assert dependencies & set(process.stdout.split()) == set()
