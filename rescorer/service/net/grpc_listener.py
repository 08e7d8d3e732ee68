"""Owns how gRPC's server listens, so that no caller can end that, and none waits to be heard.

grpc.aio (1.85.1, and others) decodes the path of a call of no method that it knows as UTF-8, in the loop that
takes calls. One call with another path, which anybody who can connect may send, ends the loop, and the
process with it where calls are open. Methods that it knows need no decoding; others are refused without it.

That loop also takes a single call of a method in four or five rounds of the event loop, which take some
milliseconds each where there is much to do: calls then wait for most of a second until they can be refused.

All this is beneath gRPC's API. Where a version of it has other parts there, its own loop takes the calls.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import grpc
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # not in the stubs

LOOK_EVERY_S = 1.0
TAKEN_AT_ONCE = 16
"""Calls of a method that can be taken in one round of the event loop."""
CALLS_TO_TAKE = 16_384
"""Calls of a method that may wait to be taken. From 1,000 on, unless told otherwise, gRPC drops some of them,
as CANCELLED, whoever sent them: one connection that opens and resets streams without an end gets there."""

PARTS: Mapping[str, str | None] = MappingProxyType(
    {
        "_RequestCallError": None,
        "_MethodResolver": None,
        "_handle_rpc": "method_name, method_resolver, interceptors, rpc_state, loop, concurrency_exceeded",
        "_schedule_rpc_coro": "rpc_coro, rpc_state, loop, method_name",
        "AioServer._make_request_call_future": "self, method_bytes",
        "AioServer._request_registered_call": "self, method",
        "AioServer._request_call": "self",
        "AioServer.add_registered_method_handlers": "self, method_handlers",
        "AioServer.is_running": "self",
    }
)
"""What is used of ``cygrpc``, and its arguments; None: it does not tell them."""

AioServer: Any = getattr(cygrpc, "AioServer", object)

log = structlog.get_logger()


class Core(AioServer):
    """What is inside a ``grpc.aio.Server``."""

    def __init__(
        self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, Any]]
    ) -> None:
        self.interceptors = tuple(interceptors)
        self.handlers: dict[str, Any] = {}
        self.open_calls: set[asyncio.Task[None]] = set()
        """Held here, as event loops do not, until their methods have ended: also those that a server which
        stops has not waited for. gRPC cancels them."""
        super().__init__(asyncio.get_running_loop(), None, (), self.interceptors, tuple(options), None)

    def add_registered_method_handlers(self, method_handlers: dict[str, Any]) -> None:
        super().add_registered_method_handlers(method_handlers)
        self.handlers.update(method_handlers)

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Answers all calls of a method; gRPC's own loop, which waits for the next one, is told of none.

        Args:
            method: its path; None: any that there is not.
        """
        loop = asyncio.get_running_loop()
        return loop.create_task(self._answer_unknown() if method is None else self._answer_all(method))

    async def _answer_all(self, method: bytes) -> None:
        """Until the server stops; then raises as the next call would.

        The first to raise ends this, and the others themselves: what has come to them is still answered.
        """
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
        loop = asyncio.get_running_loop()
        while True:
            try:
                state = await next_call()
            except cygrpc._RequestCallError:
                if self.is_running():  # this call alone has failed
                    continue
                raise
            answer = cygrpc._handle_rpc(path, resolver, interceptors, state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, path))
            self.open_calls.add(task)
            task.add_done_callback(self.open_calls.discard)


def other_parts() -> Iterator[str]:
    """Which of ``PARTS`` the installed gRPC lacks, or has with other arguments."""
    for name, arguments in PARTS.items():
        try:
            part = attrgetter(name)(cygrpc)
            if arguments is not None and ", ".join(inspect.signature(part).parameters) != arguments:
                yield name
        except (AttributeError, TypeError, ValueError):  # the last two: it has no signature
            yield name


def listening_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor],
    connection_calls: int,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Server:
    """As ``grpc.aio.server``, but whatever path a call has, it goes on; or just that, with a warning, where
    the installed gRPC is made otherwise inside.

    Args:
        connection_calls: that a connection may have open. Clients wait with the next one until another has
            ended; where they do not, as those that open and reset streams without an end, it is refused.
            Each takes 10 to 15 KB until it is looked at, and the process keeps what it once took.
    """
    options = [
        *options,
        ("grpc.max_concurrent_streams", connection_calls),
        # It would also count calls that are over but not tidied up, and refuse those of clients that obey.
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", CALLS_TO_TAKE),
        ("grpc.server.max_pending_requests_hard_limit", 2 * CALLS_TO_TAKE),
    ]
    server: Any = grpc.aio.server(interceptors=interceptors, options=options)
    other = list(other_parts())
    if other or type(getattr(server, "_server", None)) is not AioServer:
        log.warning("gRPC takes calls its own way: slower under load", version=grpc.__version__, other=other)
    else:
        server._server = Core(interceptors, options)
    return server


async def watch(server: grpc.aio.Server, lost: Callable[[str], None]) -> None:
    """Calls ``lost`` with the reason where the server no longer listens and nobody has told it to stop."""
    try:
        # Without a time limit gRPC does not tell of its loop's end while calls are open.
        while await server.wait_for_termination(LOOK_EVERY_S):
            pass
    except Exception as fault:
        lost(f"gRPC has stopped listening: {fault!r}")
