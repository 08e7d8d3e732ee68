"""Owns how gRPC's server listens, so that no caller can end that.

grpc.aio (1.85.1, and others) decodes the path of a call of no method that it knows as UTF-8, in the loop that
takes calls. One call with another path, which anybody who can connect may send, ends the loop, and the
process with it where calls are open. Methods that it knows need no decoding; others are refused without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server as aio_server

LOOK_EVERY_S = 1.0


class Core(cygrpc.AioServer):  # type: ignore[misc]  # not in the stubs
    """What is inside a ``grpc.aio.Server``."""

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """The next call of a method; None: of one that there is not, which gRPC's loop is never told of."""
        if method is not None:
            return super()._make_request_call_future(method)
        return asyncio.get_running_loop().create_task(self._refuse_unknown())

    async def _refuse_unknown(self) -> None:
        """Answers UNIMPLEMENTED until the server stops; then raises as the next call would."""
        loop, open_calls = asyncio.get_running_loop(), set()
        resolver = cygrpc._MethodResolver([], {})
        while True:
            state = await self._request_call()
            refusal = cygrpc._handle_rpc("", resolver, (), state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(refusal, state, loop, ""))
            open_calls.add(task)
            task.add_done_callback(open_calls.discard)


def listening_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, Any]]
) -> grpc.aio.Server:
    """As ``grpc.aio.server``, but whatever path a call has, it goes on."""
    server: Any = grpc.aio.server(interceptors=interceptors, options=options)
    arguments = aio_server._augment_channel_arguments(options, None)
    server._server = Core(asyncio.get_running_loop(), None, (), tuple(interceptors), arguments, None)
    return server


async def watch(server: grpc.aio.Server, lost: Callable[[str], None]) -> None:
    """Calls ``lost`` with the reason where the server no longer listens and nobody has told it to stop."""
    try:
        # Without a time limit gRPC does not tell of its loop's end while calls are open.
        while await server.wait_for_termination(LOOK_EVERY_S):
            pass
    except Exception as fault:
        lost(f"gRPC has stopped listening: {fault!r}")
