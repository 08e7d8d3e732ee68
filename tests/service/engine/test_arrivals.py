"""Places of requests that are still arriving: bounded, in order, and not to be held by half-sent requests."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from rescorer.client import NO_RETRY, Client
from rescorer.service.engine import client_limits
from rescorer.service.engine.client_limits import Arrivals
from tests.support.clients import make_list
from tests.support.http2 import RESCORE, RawConnection, grpc_code
from tests.support.servers import run_server
from tools.fuzz.http2 import DATA, frame

CAPACITY = 4
RESOURCE_EXHAUSTED = 8
HALF = b"\0\0\1\0\0half"


@pytest.fixture(autouse=True)
def short_arrivals(monkeypatch):
    monkeypatch.setattr(client_limits, "MIN_ARRIVAL_S", 0.2)


async def receive(places: Arrivals, seconds: float, log: list[str], name: str) -> None:
    try:
        async with asyncio.timeout(10) as timeout, places.hold(timeout):
            log.append(f"{name} began")
            await asyncio.sleep(seconds)
        log.append(f"{name} arrived")
    except TimeoutError:
        log.append(f"{name} lost its place")


def test_the_longest_arrival_loses_its_place_only_if_others_wait():
    async def run() -> list[str]:
        log: list[str] = []
        places = Arrivals(2)
        await asyncio.gather(
            *(receive(places, *case) for case in ((1.0, log, "slow"), (0.1, log, "quick"))),
        )
        assert log[-2:] == ["quick arrived", "slow arrived"]  # nobody waited, however long it took
        log.clear()
        await asyncio.gather(*(receive(places, 2.5 if i < 3 else 0, log, str(i)) for i in range(4)))
        return log

    log = asyncio.run(run())
    assert log.index("0 lost its place") < log.index("2 began")
    assert log.index("1 lost its place") < log.index("3 began")
    assert "3 arrived" in log
    assert "2 arrived" in log  # nobody waits any more


def test_places_are_returned_by_cancelled_calls():
    async def run() -> None:
        places = Arrivals(1)
        holding = asyncio.create_task(receive(places, 60, [], "a"))
        waiting = asyncio.create_task(receive(places, 60, [], "b"))
        await asyncio.sleep(0)
        waiting.cancel()
        holding.cancel()
        await asyncio.gather(holding, waiting, return_exceptions=True)
        log: list[str] = []
        await receive(places, 0, log, "c")
        assert log == ["c began", "c arrived"]

    asyncio.run(run())


@pytest.mark.slow
def test_half_sent_requests_keep_nobody_out(ngram_bundle, monkeypatch):
    monkeypatch.setattr(client_limits, "Arrivals", lambda _: Arrivals(CAPACITY))
    with ExitStack() as stack:
        server = stack.enter_context(run_server(ngram_bundle))
        hostile = [stack.enter_context(RawConnection(server.port)) for _ in range(3)]
        streams = [connection.call(RESCORE, end=False) for connection in hostile for _ in range(4)]
        for connection, stream in zip((c for c in hostile for _ in range(4)), streams, strict=True):
            connection.send(frame(DATA, 0, stream, HALF))
        client = stack.enter_context(Client(server.target, retry=NO_RETRY))
        assert client.rescore([make_list()], timeout_s=10)[0].id == make_list().id
        assert grpc_code(hostile[0].read_until_end(streams[0])) == RESOURCE_EXHAUSTED
