"""How gRPC's server listens: what becomes of open calls when it stops, and what it does with another gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.net import grpc_listener
from rescorer.service.net.grpc_listener import INTERNALS, changed_internals, create_grpc_server
from tests.support.servers import run_server
from tests.support.stubs import make_list_message

pytestmark = pytest.mark.slow


@asynccontextmanager
async def answering(answer: Callable[[bytes, Any], Awaitable[bytes]]) -> AsyncIterator[tuple[Any, Any]]:
    """A bare server of one method, and that method as its callers have it."""
    server = create_grpc_server((), 100)
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_registered_method_handlers("test.Service", {"Method": handler})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield server, channel.unary_unary("/test.Service/Method")
        await server.stop(None)


def test_calls_are_held_until_their_methods_have_ended_also_when_the_server_stops():
    ended: list[str] = []

    async def answer(request: bytes, _: Any) -> bytes:
        try:
            await asyncio.sleep(20 if request == b"long" else 0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # as methods that still have to tidy up
            raise
        finally:
            ended.append(request.decode())
        return request

    async def run() -> None:
        async with answering(answer) as (server, method):
            open_calls = server._server.open_calls
            assert await method(b"short") == b"short"
            long = [asyncio.ensure_future(method(b"long")) for _ in range(20)]
            while len(open_calls) < len(long):
                await asyncio.sleep(0.01)
            began = time.monotonic()
            await server.stop(0.2)
            assert time.monotonic() - began < 5
            for call in long:
                with pytest.raises(grpc.aio.AioRpcError):
                    await call
            while open_calls:
                await asyncio.sleep(0.01)
        assert sorted(ended) == ["long"] * 20 + ["short"]

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_server_stops_at_once_however_many_call():
    codes = set()

    async def answer(request: bytes, _: Any) -> bytes:
        await asyncio.sleep(0.001)
        return request

    async def call_on(method: Any) -> None:
        while True:
            try:
                assert await method(b"x") == b"x"
            except grpc.aio.AioRpcError as fault:
                codes.add(fault.code())

    async def stop_s() -> float:
        async with answering(answer) as (server, method):
            callers = [asyncio.create_task(call_on(method)) for _ in range(16)]
            await asyncio.sleep(0.1)
            began = time.monotonic()
            await server.stop(20)
            seconds = time.monotonic() - began
            for caller in callers:
                caller.cancel()
            over = await asyncio.gather(*callers, return_exceptions=True)
            assert {type(each) for each in over} == {asyncio.CancelledError}
        return seconds

    # On a busy machine gRPC itself waits out the grace in 5 of 1,000 stops, for a call that came just then;
    # ``Server.stop`` does not wait for it.
    seconds = sorted(asyncio.run(asyncio.wait_for(stop_s(), 30)) for _ in range(5))
    assert seconds[-2] < 5
    assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def test_a_client_may_ask_for_more_calls_than_its_connection_may_have_open():
    """They wait in the client; gRPC's own counting refused more than half of them, as UNAVAILABLE."""

    async def answer(request: bytes, _: Any) -> bytes:
        await asyncio.sleep(0.01)
        return request

    async def run() -> None:
        async with answering(answer) as (_, method):
            for _ in range(2):
                assert len(await asyncio.gather(*(method(b"x") for _ in range(500)))) == 500

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ({"AioServer._gone": None}, ["AioServer._gone"]),
        ({"_handle_rpc": "method_name, rpc_state"}, ["_handle_rpc"]),
        ({"_MethodResolver": "generic_handlers"}, ["_MethodResolver"]),
    ],
)
def test_with_another_grpc_the_server_listens_as_that_does(monkeypatch, ngram_bundle, change, other):
    monkeypatch.setattr(grpc_listener, "INTERNALS", {**INTERNALS, **change})
    assert list(changed_internals()) == other
    with capture_logs() as logs, run_server(ngram_bundle) as server:
        assert not isinstance(server.server._server._server, grpc_listener.Core)
        with grpc.insecure_channel(server.target) as channel:
            answer = RescorerServiceStub(channel).Rescore(
                pb.RescoreRequest(lists=[make_list_message()]), timeout=20
            )
        assert answer.lists[0].status.code == 0
    (warning,) = [each for each in logs if each["log_level"] == "warning"]
    assert (warning["changed"], warning["version"]) == (other, grpc.__version__)


def test_this_grpc_has_the_parts_that_calls_are_taken_with(ngram_bundle):
    assert list(changed_internals()) == []
    with run_server(ngram_bundle, load=False) as server:
        assert isinstance(server.server._server._server, grpc_listener.Core)
