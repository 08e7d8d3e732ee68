"""The Python clients: what they send and read ahead, and the faults they raise."""

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
from rescorer.client.blocking import DEFAULT_OPEN_CALLS
from rescorer.client.calls import MAX_BULK_LISTS
from rescorer.errors import DeadlineExceeded, Overloaded, Unavailable
from tests.conftest import REPOSITORY
from tests.support.clients import make_list, rescore_async
from tests.support.servers import run_server, wait_until


@pytest.fixture(scope="module")
def server(bundle):
    with run_server(bundle, max_in_flight_lists=256) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.target) as client:
        client.wait_ready(10)
        yield client


def test_what_cannot_be_sent_is_answered_in_its_place(client, server):
    unreadable = FormatError("not JSON", file="lists.jsonl", line=3)
    some = [
        make_list("a"),
        unreadable,
        make_list("b", "\ud800"),
        make_list("c", "x" * 5_000_000),
        make_list("d"),
    ]
    for answers in (
        client.rescore(some),
        list(client.rescore_stream(some)),
        *asyncio.run(rescore_async(server.target, some)),
    ):
        kinds = [type(each) for each in answers]
        assert kinds == [RescoredList, FormatError, InvalidList, LimitExceeded, RescoredList]
        assert answers[1] is unreadable
        assert (answers[0].id, answers[4].id) == ("a", "d")


@pytest.mark.slow
def test_faults_of_a_call_are_raised_as_our_own(client, server, monkeypatch):
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
    with pytest.raises(ScoringError, match="internal fault") as caught:
        client.rescore([make_list()])
    assert "secret" not in str(caught.value)
    with pytest.raises(ScoringError, match="internal fault"):
        asyncio.run(rescore_async(server.target, [make_list()]))


def test_time_and_room_run_out(client, server):
    server.scorer.gate.clear()
    try:
        with pytest.raises(DeadlineExceeded):
            client.rescore([make_list()], timeout_s=0.2)
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(client.rescore, [make_list()] * 128) for _ in range(2)]
            wait_until(lambda: server.in_flight == 256)
            with Client(server.target, retry=NO_RETRY) as other, pytest.raises(Overloaded):
                other.rescore([make_list()])
            server.scorer.gate.set()
            assert [len(each.result()) for each in waiting] == [128, 128]
    finally:
        server.scorer.gate.set()


def test_a_server_that_is_not_there_or_not_ready_is_told_apart(bundle, unused_port):
    async def ready(target: str) -> None:
        async with AsyncClient(target) as client:
            await client.wait_ready(0.3)

    nobody = f"127.0.0.1:{unused_port}"
    with Client(nobody, retry=NO_RETRY) as client:
        with pytest.raises(Unavailable):
            client.rescore([make_list()])
        with pytest.raises(DeadlineExceeded, match=f"^{nobody}: connection refused$"):
            client.wait_ready(0.3)
    with pytest.raises(DeadlineExceeded, match=f"^{nobody}: connection refused$"):
        asyncio.run(ready(nobody))
    with run_server(bundle, load=False) as server, Client(server.target, retry=NO_RETRY) as client:
        with pytest.raises(Unavailable, match="unhealthy"):
            client.rescore([make_list()])
        loading = f"^{server.target}: NOT_SERVING, still loading its models"
        with pytest.raises(DeadlineExceeded, match=loading):
            client.wait_ready(0.3)
        with pytest.raises(DeadlineExceeded, match=loading):
            asyncio.run(ready(server.target))
        server.load()
        client.wait_ready(5)


def test_a_stream_reads_only_a_little_ahead_and_can_be_left(client, server):
    read = itertools.count()
    endless = (make_list(f"u{next(read)}") for _ in itertools.count())
    answers = client.rescore_stream(endless)
    assert [next(answers).id for _ in range(3)] == ["u0", "u1", "u2"]
    answers.close()
    assert next(read) <= MAX_BULK_LISTS * (DEFAULT_OPEN_CALLS + 2)

    async def first_of_endless() -> str:
        async with AsyncClient(server.target) as client:
            answers = client.rescore_stream(make_list(f"u{i}") for i in itertools.count())
            async for answer in answers:
                await answers.aclose()
                return answer.id

    assert asyncio.run(first_of_endless()) == "u0"


def test_what_the_lists_themselves_raise_comes_after_the_answers_before_it(client, server):
    def broken():
        yield from (make_list(f"u{i}") for i in range(40))
        raise FormatError("cannot be opened", file="x")

    async def streamed() -> None:
        async with AsyncClient(server.target) as client:
            async for answer in client.rescore_stream(broken()):
                answered.append(answer.id)

    def streamed_blocking() -> None:
        for answer in client.rescore_stream(broken()):
            answered.append(answer.id)

    answered: list[str] = []
    with pytest.raises(FormatError, match="cannot be opened"):
        streamed_blocking()
    assert answered == [f"u{i}" for i in range(MAX_BULK_LISTS)]
    answered.clear()
    with pytest.raises(FormatError, match="cannot be opened"):
        asyncio.run(streamed())
    assert answered == [f"u{i}" for i in range(MAX_BULK_LISTS)]


def test_a_client_needs_no_model_libraries():
    """What README names is enough."""
    code = "import sys, rescorer.client; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    others = {re.split("[>=]", each)[0].replace("-", "_") for each in project["dependencies"]}
    assert others & set(done.stdout.split()) == {"numpy"}


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
