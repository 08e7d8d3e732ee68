"""Owns how gRPC's server listens, so that no caller can end that, and none waits to be heard.

grpc.aio (1.85.1, and others) decodes the path of a call of no method that it knows as UTF-8, in the loop that
takes calls. One call with another path, which anybody who can connect may send, ends the loop, and the
process with it where calls are open. Methods that it knows need no decoding; others are refused without it.

That loop also takes a single call of a method in four or five rounds of the event loop, which take some
milliseconds each where there is much to do: calls then wait for most of a second until they can be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server as aio_server

LOOK_EVERY_S = 1.0
TAKEN_AT_ONCE = 16
"""Calls of a method that can be taken in one round of the event loop."""


class Core(cygrpc.AioServer):  # type: ignore[misc]  # not in the stubs
    """What is inside a ``grpc.aio.Server``."""

    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = ()

    def add_registered_method_handlers(self, method_handlers: dict[str, Any]) -> None:
        super().add_registered_method_handlers(method_handlers)
        self.handlers = {**getattr(self, "handlers", {}), **method_handlers}

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Answers all calls of a method; gRPC's own loop, which waits for the next one, is told of none.

        Args:
            method: its path; None: any that there is not.
        """
        loop = asyncio.get_running_loop()
        return loop.create_task(self._answer_unknown() if method is None else self._answer_all(method))

    async def _answer_all(self, method: bytes) -> None:
        """Until the server stops; then raises as the next call would."""
        resolver = cygrpc._MethodResolver([], self.handlers)
        await asyncio.gather(
            *(
                self._answer(
                    method.decode(),
                    resolver,
                    self.interceptors,
                    lambda: self._request_registered_call(method),
                )
                for _ in range(TAKEN_AT_ONCE)
            )
        )

    async def _answer_unknown(self) -> None:
        """UNIMPLEMENTED, likewise."""
        await self._answer("", cygrpc._MethodResolver([], {}), (), self._request_call)

    async def _answer(
        self,
        path: str,
        resolver: Any,
        interceptors: tuple[grpc.aio.ServerInterceptor, ...],
        next_call: Callable[[], Awaitable[Any]],
    ) -> None:
        """One call after the other is taken, and answered in a task of its own."""
        loop, open_calls = asyncio.get_running_loop(), set()
        while True:
            state = await next_call()
            answer = cygrpc._handle_rpc(path, resolver, interceptors, state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, path))
            open_calls.add(task)
            task.add_done_callback(open_calls.discard)


def listening_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, Any]]
) -> grpc.aio.Server:
    """As ``grpc.aio.server``, but whatever path a call has, it goes on."""
    server: Any = grpc.aio.server(interceptors=interceptors, options=options)
    arguments = aio_server._augment_channel_arguments(options, None)
    server._server = Core(asyncio.get_running_loop(), None, (), tuple(interceptors), arguments, None)
    server._server.interceptors = tuple(interceptors)
    return server


async def watch(server: grpc.aio.Server, lost: Callable[[str], None]) -> None:
    """Calls ``lost`` with the reason where the server no longer listens and nobody has told it to stop."""
    try:
        # Without a time limit gRPC does not tell of its loop's end while calls are open.
        while await server.wait_for_termination(LOOK_EVERY_S):
            pass
    except Exception as fault:
        lost(f"gRPC has stopped listening: {fault!r}")
