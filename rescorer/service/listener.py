"""The port of a server, and a gRPC server that accepts calls quickly under load.

grpc.aio (1.85.1 and other versions) accepts calls in a loop that has two faults:

- The loop decodes the path of an unknown method as UTF-8. A single call with an undecodable path, which
  anyone who can connect may send, ends the loop, and the process too if calls are open. Here known methods
  need no decoding, and unknown ones are refused without it.
- The loop needs four or five rounds of the event loop to accept one call of a method. Under load a round
  takes some milliseconds, so that calls wait for most of a second before they can even be refused.

The accept loops of this module replace it. They use internals below gRPC's public API; if a version of grpc
has other internals, its own loop is used.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # not in the stubs

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io.text_io import remove_file, write_text
from rescorer.protocol.messages import format_address
from rescorer.service.connections import ConnectionGuard

log = structlog.get_logger()

NEVER_MS = 2**31 - 1
MIN_PING_INTERVAL_MS = 5_000
"""Shortest interval at which clients may ping, with or without open calls. 10 s is the shortest one that
gRPC's clients in Go and Java can be set to; gRPC's default of 5 minutes would disconnect them."""
KEEPALIVE_INTERVAL_MS, KEEPALIVE_TIMEOUT_MS = 60_000, 20_000
"""Interval at which the server pings a silent client, and longest wait for the reply, which gRPC clients send
by themselves. By default gRPC notices only after two hours that a client is gone."""

WINDOW_BYTES = 65_535
"""Bytes that clients may send of a message that no method has asked for yet (RFC 9113, section 6.9.2). gRPC
would raise this limit to hundreds of megabytes for clients that send fast."""


def to_ms(seconds: float) -> int:
    """Convert a time limit to milliseconds for gRPC. A limit of 0 s means that there is no limit."""
    return min(round(seconds * 1e3), NEVER_MS) or NEVER_MS


def write_port(path: Path | None, port: int) -> None:
    """Write the port file, if there is one, atomically: scripts wait for it.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        if path is not None:
            write_text(path, f"{port}\n")
    except FormatError as error:
        raise ConfigError(f"port_file {path} {error.message}") from None


def remove_port(path: Path | None) -> None:
    """Remove the port file if it exists; a device or pipe stays.

    Raises:
        ConfigError: the file cannot be removed.
    """
    try:
        if path is not None:
            remove_file(path)
    except OSError as error:
        raise ConfigError(f"port_file {path} cannot be removed: {error.strerror}") from None


NO_ADDRESS = (errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL)
"""Errors for addresses of other machines and for unknown names."""


def check_free(host: str, port: int) -> None:
    """Check that the service can listen on an address; gRPC's own error does not say why it cannot.

    Raises:
        ConfigError: nothing can listen there.
    """
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        address = format_address(host, port)
        raise ConfigError(f"the service cannot listen on {address}: {explain(error)}") from None


def keep_port(host: str, port: int) -> socket.socket:
    """Reserve an address for processes that listen there with SO_REUSEPORT. Port 0 reserves any free port.

    While the returned socket is open, no process of another user can listen there.

    Raises:
        ConfigError: nothing can listen there.
    """
    check_free(host, port)
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    for option, value in ((socket.SO_REUSEADDR, 1), (socket.SO_REUSEPORT, 1)):
        reserved.setsockopt(socket.SOL_SOCKET, option, value)
    reserved.bind((host, port))
    # SO_REUSEADDR was needed to bind despite connections that a previous server left. While it is set,
    # other processes could listen here too.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return reserved


def explain(error: OSError) -> str:
    """Explain why a socket cannot listen, and what to do."""
    if error.errno in NO_ADDRESS:
        return "this machine has no such address"
    if error.errno == errno.EADDRINUSE:
        return "another process does already; choose another port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return "permission denied; choose a port above 1023"
    return str(error.strerror)


CHECK_INTERVAL_S = 1.0
PARALLEL_ACCEPTS = 16
"""Number of calls of a method that can be accepted in one round of the event loop."""
MAX_PENDING_CALLS = 131_072
"""Number of calls of a method that may wait to be accepted. By default gRPC drops calls of any client as
CANCELLED if more than 1,000 wait, which a few connections can cause by opening and resetting streams."""

INTERNALS: Mapping[str, str | None] = MappingProxyType(
    {
        "_RequestCallError": None,
        "_MethodResolver": None,
        "_handle_rpc": "method_name, method_resolver, interceptors, rpc_state, loop, concurrency_exceeded",
        "_ServicerContext.peer": "self",
        "_schedule_rpc_coro": "rpc_coro, rpc_state, loop, method_name",
        "AioServer._make_request_call_future": "self, method_bytes",
        "AioServer._request_registered_call": "self, method",
        "AioServer._request_call": "self",
        "AioServer.add_registered_method_handlers": "self, method_handlers",
        "AioServer.is_running": "self",
    }
)
"""Names in ``cygrpc`` that this module uses, each with its arguments; None: they cannot be inspected."""

AioServer: Any = getattr(cygrpc, "AioServer", object)


@dataclass(slots=True)
class AcceptedCall:
    """A call that an accept loop has taken."""

    is_served: bool = False
    """Whether a message of the call was read, or the call needed none."""
    is_refused: bool = False
    """Whether the server ended the call, perhaps before it read anything."""
    task: Callable[[], asyncio.Task[None] | None] = lambda: None
    """The task in which gRPC serves the call, by a weak reference, since it refers to its context."""


accepted_call: ContextVar[AcceptedCall] = ContextVar("accepted_call")
"""The call that the current task handles."""


def mark_refused() -> None:
    """Note that the server ends the current call itself, so that its end does not count as a reset."""
    if call := accepted_call.get(None):
        call.is_refused = True


def mark_served() -> None:
    """Note that the current call is served, so that its end does not count as a reset."""
    if call := accepted_call.get(None):
        call.is_served = True


RESET_S = 0.02
"""Time for which a call of a suspect connection waits to be served. If it was reset, it costs little then."""


class Core(AioServer):
    """The Cython part of a ``grpc.aio.Server``, with the accept loops of this module."""

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[tuple[str, Any]],
        guard: ConnectionGuard,
    ) -> None:
        self.interceptors, self.guard = tuple(interceptors), guard
        self.handlers: dict[str, Any] = {}
        self.open_calls: set[asyncio.Task[None]] = set()
        """References to running calls until their methods end, since event loops keep only weak references.
        They include calls that a stopping server has not waited for, which gRPC cancels."""
        super().__init__(asyncio.get_running_loop(), None, (), self.interceptors, tuple(options), None)

    def add_registered_method_handlers(self, method_handlers: dict[str, Any]) -> None:
        super().add_registered_method_handlers(method_handlers)
        self.handlers.update(method_handlers)

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Answer all calls of a method. gRPC's own loop awaits the returned future, and never gets a call.

        Args:
            method: path of the method; None: all unknown methods.
        """
        if method is None:  # answered with UNIMPLEMENTED
            answering = self._answer("", cygrpc._MethodResolver([], {}), (), self._request_call)
        else:
            answering = self._answer_all(method)
        return asyncio.get_running_loop().create_task(answering)

    async def _answer_all(self, method: bytes) -> None:
        """Answer calls of a method in several concurrent loops until the server stops.

        Then raise the exception that requesting another call raises. This method ends as soon as one loop
        raises; the other loops answer the calls that they have accepted and then end.
        """
        resolver = cygrpc._MethodResolver([], self.handlers)
        path, accept = method.decode(), lambda: self._request_registered_call(method)
        loops = (self._answer(path, resolver, self.interceptors, accept) for _ in range(PARALLEL_ACCEPTS))
        await asyncio.gather(*loops)

    async def _answer(
        self,
        path: str,
        resolver: Any,
        interceptors: tuple[grpc.aio.ServerInterceptor, ...],
        next_call: Callable[[], Awaitable[Any]],
    ) -> None:
        """Accept one call after the other, and answer each in a new task."""
        while True:
            try:
                # No variable may refer to the call: it would keep the call in memory until the next one.
                self._start(path, resolver, interceptors, await next_call())
            except cygrpc._RequestCallError:
                if not self.is_running():  # otherwise only this call has failed
                    raise

    def _start(
        self, path: str, resolver: Any, interceptors: tuple[grpc.aio.ServerInterceptor, ...], state: Any
    ) -> None:
        """Answer a call in a new task, unless its connection was cut off."""
        loop, guard = asyncio.get_running_loop(), self.guard
        peer = cygrpc._ServicerContext(state, None, None, loop).peer()
        if guard.is_cut_off(peer):
            return  # gRPC ends calls that nothing refers to
        call, is_suspect = AcceptedCall(), guard.is_suspect(peer)

        async def answer() -> None:
            if is_suspect:
                await asyncio.sleep(RESET_S)
            await cygrpc._handle_rpc(path, resolver, interceptors, state, loop, False)
            call.is_served |= not interceptors  # calls of unknown methods are answered unread

        def finish(task: asyncio.Task[None]) -> None:
            self.open_calls.discard(task)
            if call.is_served:
                guard.record_answer(peer)
            elif not call.is_refused:
                guard.record_reset(peer)

        context = copy_context()
        context.run(accepted_call.set, call)
        task = loop.create_task(cygrpc._schedule_rpc_coro(answer(), state, loop, path), context=context)
        call.task = weakref.ref(task)
        self.open_calls.add(task)
        task.add_done_callback(finish)


def on_call_done(callback: Callable[[Any], None]) -> None:
    """Call a function when gRPC has finished the call of the current task, whatever its outcome.

    Unlike ``ServicerContext.add_done_callback``, this leaves no reference cycle, which would keep the call
    and its messages in memory until they are garbage-collected.
    """
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(callback)


def current_call_canceller() -> Callable[[], None] | None:
    """Return a function that cancels the call of the current task; None if gRPC's own accept loop is used.

    The function also works after the method has returned, while gRPC waits for the client to read the answer;
    gRPC itself has no way to end this. Both tasks of the call are cancelled. When nothing refers to the call
    any more, which may need a garbage collection, gRPC resets the client's stream and frees the answer.
    """
    call, handling = accepted_call.get(None), asyncio.current_task()
    if call is None or handling is None:
        return None

    def cancel() -> None:
        handling.cancel()
        if (task := call.task()) is not None:
            task.cancel()

    return cancel


def changed_internals() -> Iterator[str]:
    """Yield each name in ``INTERNALS`` that the installed gRPC lacks, or that takes other arguments there."""
    for name, arguments in INTERNALS.items():
        try:
            part = attrgetter(name)(cygrpc)
            if arguments is not None and ", ".join(inspect.signature(part).parameters) != arguments:
                yield name
        except (AttributeError, TypeError, ValueError):  # the last two: no signature
            yield name


def create_grpc_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor],
    max_calls_per_connection: int,
    options: Sequence[tuple[str, Any]] = (),
    on_cut_off: Callable[[], object] = lambda: None,
) -> grpc.aio.Server:
    """Create a ``grpc.aio.server`` with the accept loops of this module.

    If the installed gRPC has other internals, it keeps its own loop, and a warning is logged.

    Args:
        max_calls_per_connection: calls that a connection may have open. gRPC refuses more than twice as many.
            It also counts calls that have ended or were reset and are not cleaned up yet, since each takes 10
            to 15 KB of memory; there are not more of them than a client that keeps to the limit has open.
        on_cut_off: called whenever a connection is cut off because it resets its calls endlessly.
    """
    options = [
        *options,
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.max_concurrent_streams", 2 * max_calls_per_connection),
        ("grpc.http.overload_protection", 1),  # count calls until they are cleaned up
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
    ]
    server: Any = grpc.aio.server(interceptors=interceptors, options=options)
    changed = list(changed_internals())
    if changed or type(getattr(server, "_server", None)) is not AioServer:
        log.warning(
            "gRPC internals changed; accepting calls is slower", version=grpc.__version__, changed=changed
        )
    else:
        guard = ConnectionGuard(2 * max_calls_per_connection, on_cut_off)
        server._server = Core(interceptors, options, guard)
    return server


async def watch_listening(server: grpc.aio.Server, on_lost: Callable[[str], None]) -> None:
    """Call ``on_lost`` with the reason if the server stops listening without being stopped."""
    try:
        # Without a timeout gRPC does not report the end of its loop while calls are open.
        while await server.wait_for_termination(CHECK_INTERVAL_S):
            pass
    except Exception as error:
        on_lost(f"gRPC has stopped listening: {error!r}")
