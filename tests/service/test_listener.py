"""The gRPC listener: open calls when the server stops, and the fallback for other versions of gRPC."""

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
from rescorer.service import listener
from rescorer.service.listener import INTERNALS, changed_internals, create_grpc_server
from tests.support.servers import run_server
from tests.support.stubs import make_list_message

pytestmark = pytest.mark.slow

MAX_CALLS = 100
"""Calls that a connection may have open."""


@asynccontextmanager
async def run_one_method(answer: Callable[[bytes, Any], Awaitable[bytes]]) -> AsyncIterator[tuple[Any, Any]]:
    """Run a bare server with one method; yield the server and the method as a client calls it."""
    server = create_grpc_server((), MAX_CALLS)
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_registered_method_handlers("test.Service", {"Method": handler})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield server, channel.unary_unary("/test.Service/Method")
        await server.stop(None)


def test_keeps_calls_until_their_methods_have_ended_even_when_stopping():
    ended: list[str] = []

    async def answer(request: bytes, _: Any) -> bytes:
        try:
            await asyncio.sleep(20 if request == b"long" else 0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # like a method that still has to clean up
            raise
        finally:
            ended.append(request.decode())
        return request

    async def run() -> None:
        async with run_one_method(answer) as (server, method):
            open_calls = server._server.open_calls
            assert await method(b"short") == b"short"
            long_calls = [asyncio.ensure_future(method(b"long")) for _ in range(20)]
            while len(open_calls) < len(long_calls):
                await asyncio.sleep(0.01)
            began = time.monotonic()
            await server.stop(0.2)
            assert time.monotonic() - began < 5
            for call in long_calls:
                with pytest.raises(grpc.aio.AioRpcError):
                    await call
            while open_calls:
                await asyncio.sleep(0.01)
        assert sorted(ended) == ["long"] * 20 + ["short"]

    asyncio.run(asyncio.wait_for(run(), 20))


def test_stops_at_once_under_load():
    codes = set()

    async def answer(request: bytes, _: Any) -> bytes:
        await asyncio.sleep(0.001)
        return request

    async def call_repeatedly(method: Any) -> None:
        while True:
            try:
                assert await method(b"x") == b"x"
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())

    async def measure_stop_s() -> float:
        async with run_one_method(answer) as (server, method):
            callers = [asyncio.create_task(call_repeatedly(method)) for _ in range(16)]
            await asyncio.sleep(0.1)
            began = time.monotonic()
            await server.stop(20)
            seconds = time.monotonic() - began
            for caller in callers:
                caller.cancel()
            errors = await asyncio.gather(*callers, return_exceptions=True)
            assert {type(error) for error in errors} == {asyncio.CancelledError}
        return seconds

    # On a busy machine, gRPC itself waits for the whole grace time in 5 of 1,000 stops, because of a call
    # that has just arrived; ``Server.stop`` does not wait for it.
    seconds = sorted(asyncio.run(asyncio.wait_for(measure_stop_s(), 30)) for _ in range(5))
    assert seconds[-2] < 5
    assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def test_a_client_that_keeps_to_the_limit_per_connection_is_never_refused():
    """gRPC also counts calls that have ended but are not cleaned up."""

    async def answer(request: bytes, _: Any) -> bytes:
        await asyncio.sleep(0.01)
        return request

    async def run() -> None:
        async with run_one_method(answer) as (_, method):

            async def call_repeatedly() -> None:
                for _ in range(10):
                    assert await method(b"x") == b"x"

            await asyncio.gather(*(call_repeatedly() for _ in range(MAX_CALLS)))

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"AioServer._gone": None}, ["AioServer._gone"]),
        ({"_handle_rpc": "method_name, rpc_state"}, ["_handle_rpc"]),
        ({"_MethodResolver": "generic_handlers"}, ["_MethodResolver"]),
    ],
)
def test_falls_back_to_the_listener_of_an_unknown_grpc_version(monkeypatch, ngram_bundle, change, changed):
    monkeypatch.setattr(listener, "INTERNALS", {**INTERNALS, **change})
    assert list(changed_internals()) == changed
    with capture_logs() as logs, run_server(ngram_bundle) as server:
        assert not isinstance(server.server.grpc_server._server, listener.Core)
        with grpc.insecure_channel(server.target) as channel:
            answer = RescorerServiceStub(channel).Rescore(
                pb.RescoreRequest(lists=[make_list_message()]), timeout=20
            )
        assert answer.lists[0].status.code == 0
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["changed"], warning["version"]) == (changed, grpc.__version__)


def test_the_installed_grpc_has_the_expected_internals(ngram_bundle):
    assert list(changed_internals()) == []
    with run_server(ngram_bundle, load=False) as server:
        assert isinstance(server.server.grpc_server._server, listener.Core)
