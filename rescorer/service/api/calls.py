"""Steps before and after the method of every call: authentication, telemetry, errors, and a stopping server.

Without these interceptors, gRPC would send the text of any exception to the client, with the code UNKNOWN.
"""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from rescorer.errors import InputError, Unavailable
from rescorer.protocol.messages import error_kind, retry_after_ms, status_from_error
from rescorer.runtime import Phase
from rescorer.service.access import Authenticator, Role
from rescorer.service.engine.census import count_reading
from rescorer.service.engine.client_limits import CallMemory, RefusalPacer, StreamSlot, current_memory
from rescorer.service.engine.engine import ItemScores
from rescorer.service.engine.offloader import Turns
from rescorer.service.listener import mark_served, on_call_done
from rescorer.service.metrics import Metrics
from rescorer.service.tracing import (
    REQUEST_ID,
    CallSpan,
    PhaseTiming,
    Tracing,
    bind_request_id,
    label,
    sum_by_phase,
)

log = structlog.get_logger()

current_client: ContextVar[str] = ContextVar("client", default="")
"""Name of the client whose call the current task handles; empty if clients need not authenticate."""


def client_of(context: grpc.aio.ServicerContext) -> Hashable:
    """Identify the caller for limits and fairness: by name if clients authenticate, else by connection."""
    return current_client.get() or context.peer()


current_call: ContextVar[Call] = ContextVar("call")
"""The call that the current task handles."""


class Call:
    """Telemetry of one call.

    Attributes:
        timings: phases of the current message.
        request_bytes: size of the current message.
        reading_tokens: cost of reading the current message, in tokens.
        held_bytes: upper bound of the memory of the current message, once it is decoded.
        model: label of the bundle that serves the call.
        lists: number of lists in all messages so far.
        failed_lists: number of lists that were answered with an error. They do not affect the status of the
            call.
        edges: number of trie edges in the batches that contained the call's lists.
    """

    def __init__(self, method: str, metrics: Metrics, span: CallSpan | None) -> None:
        self.model = ""
        self.lists = self.failed_lists = self.edges = 0
        self.timings: list[PhaseTiming] = []
        self.request_bytes = self.reading_tokens = self.held_bytes = 0
        self._method, self._metrics, self._span = method, metrics, span
        self._began_at = time.perf_counter()
        self._seconds: Counter[str] = Counter()

    def record_timings(self, timings: Sequence[PhaseTiming]) -> None:
        """Record phases of the current message."""
        self.timings += timings
        self._metrics.record_timings(timings)

    def record_scores(self, parts: Sequence[ItemScores]) -> None:
        """Record the times in the queue of the current message's lists, and the batches that scored them."""
        if not parts:
            return
        batches = {id(part.scored): part.scored for part in parts}.values()
        self.timings.append(
            min((part.queue for part in parts), key=lambda timing: timing.began + timing.seconds)
        )
        self.timings += [timing for scored in batches for timing in scored.timings]
        self.edges += sum(scored.batch.trie.n_edges for scored in batches)

    def finish_message(self) -> None:
        """Finish the current message; another one may follow."""
        if self._span is not None:
            self._span.add(self.timings)
        self._seconds.update(sum_by_phase(self.timings))
        self.timings = []

    def finish(self, event: str, code: str, error: Exception | None = None) -> None:
        """Finish the call: write its log line, metrics and span.

        Args:
            event: event of the log line.
            code: name of the call's status code.
            error: the error that ended the call, if any.
        """
        self.finish_message()
        seconds = time.perf_counter() - self._began_at
        kind = error_kind(error) if error else None
        reason = kind.reason if kind else ""
        self._metrics.record_call(self._method, code, reason, seconds)
        fields: dict[str, Any] = {
            "method": self._method,
            "code": code,
            "ms": milliseconds(seconds),
            "model": self.model,
            "lists": self.lists,
            "failed_lists": self.failed_lists,
            "edges": self.edges,
            "phase_ms": {phase: milliseconds(phase_s) for phase, phase_s in self._seconds.items()},
            "reason": reason,
        }
        fields = {name: value for name, value in fields.items() if value not in ("", 0, {})}
        if self._span is not None:
            self._span.end(code, fields)
        if kind is not None and kind.hidden:
            log.error(event, **fields, exc_info=error)
        else:
            log.info(event, **fields, **({} if error is None else {"error": str(error)}))


class Telemetry:
    """Create the telemetry of a server's calls.

    Args:
        tracing: creates spans; None: no spans are created.
    """

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._metrics, self._tracing = metrics, tracing

    def begin(self, path: str, context: grpc.aio.ServicerContext) -> Call:
        """Begin a call, and make it the current call of this task.

        Args:
            path: ``/service/method``.
        """
        request_id = bind_request_id(context)
        span = None
        if self._tracing is not None:
            span = self._tracing.begin(path, context.invocation_metadata() or (), request_id)
            structlog.contextvars.bind_contextvars(trace_id=span.trace_id)
        call = Call(path.rpartition("/")[2], self._metrics, span)
        current_call.set(call)
        return call


def milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)


Message = TypeVar("Message")

LAST_READ_S = 0.1
"""Longest wait of a stopping server for a client to close its stream. Then the server ends it with an error.
A client that closes its stream has all its answers and needs no error."""


class Drain:
    """Counts the open calls of a server, and ends its streams when it stops."""

    def __init__(self) -> None:
        self._stop_requested = asyncio.Event()
        self._n_open = 0
        self._last_opened = 0.0
        self._none_open = asyncio.Event()
        self._none_open.set()

    def begin(self) -> None:
        """End the streams: at once if they wait for their clients, otherwise after the current message."""
        self._stop_requested.set()

    def add_call(self) -> None:
        """Count the current task's call as open, until its answer is sent or its client disconnects."""
        self._n_open += 1
        self._last_opened = time.monotonic()
        self._none_open.clear()

        def remove(_: Any) -> None:
            self._n_open -= 1
            if not self._n_open:
                self._none_open.set()

        on_call_done(remove)

    async def wait_until_quiet(self, quiet_s: float, max_s: float) -> None:
        """Wait until no call has arrived for ``quiet_s`` seconds, for at most about ``max_s``."""
        began = time.monotonic()
        while (now := time.monotonic()) < (last := max(self._last_opened, began)) + quiet_s:
            if now >= began + max_s:
                return
            await asyncio.sleep(last + quiet_s - now)

    async def wait_until_answered(self) -> None:
        """Wait until no call is open."""
        await self._none_open.wait()

    async def read_messages(
        self, requests: AsyncIterator[Message], slot: StreamSlot, max_idle_s: float
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of a client until it closes the stream.

        Args:
            slot: the stream's place, which is idle while this method waits for a message.
            max_idle_s: longest wait for a message.

        Raises:
            Unavailable: the server is stopping, the client sends nothing for too long, or the stream lost
                its place to another client.
        """
        stop_requested = asyncio.ensure_future(self._stop_requested.wait())
        try:
            while True:
                slot.mark_idle()
                reading = asyncio.ensure_future(anext(requests, None))
                try:
                    if (message := await self._read(reading, stop_requested, slot, max_idle_s)) is None:
                        return
                finally:
                    reading.cancel()
                slot.mark_busy()
                yield message
        finally:
            stop_requested.cancel()

    async def _read(
        self,
        reading: asyncio.Future[Message | None],
        stop_requested: asyncio.Future[Any],
        slot: StreamSlot,
        max_idle_s: float,
    ) -> Message | None:
        """Return the next message, or None at the end of the stream; raises like ``read_messages``."""
        endings = (reading, stop_requested, slot.revoked)
        await asyncio.wait(endings, timeout=max_idle_s, return_when=asyncio.FIRST_COMPLETED)
        if stop_requested.done():
            await asyncio.wait((reading,), timeout=LAST_READ_S)
            if not reading.done() or reading.result() is not None:
                raise Unavailable("the server is shutting down; send unanswered requests to another server")
        elif slot.revoked.done():
            raise Unavailable(
                "this idle stream had to end in favour of another client's; open it again to send more"
            )
        elif not reading.done():
            raise Unavailable(
                f"the stream was idle for {max_idle_s:g} s (max_idle_s); open it again to send more"
            )
        return reading.result()


PUSHBACK = "grpc-retry-pushback-ms"
MAX_STATUS_TEXT_CHARS = 200
"""Longest text in a call's status. A status is sent in headers, which contain each of its texts up to five
times and encoded. gRPC's clients accept 8 KiB of headers; they would report a longer status as
RESOURCE_EXHAUSTED or CANCELLED."""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Authorise callers; count and record the calls of our own services, bound their memory, and send errors.

    Args:
        roles: the role that each service requires, by the full name of the service. Calls of other services
            pass unchanged, such as health checks, which orchestrators make without credentials.
        response_bytes: bytes to reserve for an answer before a request is decoded, by name of each service of
            our own. For other services only the caller is checked, because they send statuses themselves.
        drain: counts the open calls.
        telemetry: records the calls, refused ones too.
        memory: bounds the bytes of requests and answers.
        count_bytes: returns an upper bound of the memory of a request, by the path of its method and its
            bytes; it may refuse the request.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        roles: Mapping[str, Role],
        response_bytes: Mapping[str, int],
        drain: Drain,
        telemetry: Telemetry,
        memory: CallMemory,
        count_bytes: Callable[[str, bytes], int],
    ) -> None:
        self._count_bytes = count_bytes
        self._authenticator, self._roles, self._response_bytes = authenticator, roles, response_bytes
        self._drain, self._telemetry, self._memory = drain, telemetry, memory
        self._pacer, self._turns = RefusalPacer(), Turns()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        service = path.lstrip("/").split("/")[0]
        role = self._roles.get(service)
        if handler is None or role is None:
            return handler
        if service not in self._response_bytes:
            return self._authorise_only(path, handler, role)
        response_bytes = self._response_bytes[service]

        async def answer(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            call = await self._begin_call(path, context, role)
            async with guard(context, call, self._pacer):
                memory = await self._memory.open(client_of(context))
                self._count_message(path, data, call)
                await memory.hold(call.held_bytes)
                await self._turns.take(client_of(context))
                await memory.hold(response_bytes)
                response = await handler.unary_unary(decode(handler, data, call), context)
                answer: bytes = handler.response_serializer(response)
                memory.post(len(answer), len(data))
                return answer

        async def answer_stream(
            stream: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> AsyncIterator[bytes]:
            call = await self._begin_call(path, context, role)
            async with guard(context, call, self._pacer):
                memory = await self._memory.open(client_of(context))

                async def read_requests() -> AsyncIterator[Any]:
                    async for data in stream:
                        mark_served()
                        self._count_message(path, data, call)
                        await memory.hold(call.held_bytes + response_bytes, wait=True)
                        await self._turns.take(client_of(context))
                        yield decode(handler, data, call)

                async for response in handler.stream_stream(read_requests(), context):
                    answer: bytes = handler.response_serializer(response)
                    call.finish_message()
                    memory.post(len(answer), call.held_bytes)  # the method still refers to the request
                    yield answer  # returns when the client's flow control has let the answer through
                    memory.mark_read()

        # gRPC passes requests and answers as bytes: decoding errors are caught here, and sizes are known.
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(answer_stream)
        return grpc.unary_unary_rpc_method_handler(answer)

    def _count_message(self, path: str, data: bytes, call: Call) -> None:
        """Count what is in the bytes of a message; raises LimitExceeded if it is too much."""
        call.request_bytes = len(data)
        call.held_bytes = self._count_bytes(path, data)
        call.reading_tokens = count_reading(data)

    def _authorise_only(self, path: str, handler: Any, role: Role) -> Any:
        async def answer_stream(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            await self._authorise(path, context, role)
            async for response in handler.stream_stream(requests, context):
                yield response

        assert handler.request_streaming  # reflection is the only such service
        return handler._replace(stream_stream=answer_stream)

    async def _begin_call(self, path: str, context: grpc.aio.ServicerContext, role: Role) -> Call:
        await self._authorise(path, context, role)
        self._drain.add_call()
        return self._telemetry.begin(path, context)

    async def _authorise(self, path: str, context: grpc.aio.ServicerContext, role: Role) -> None:
        """Find out who the caller is; abort the call if the caller does not have the role."""
        try:
            client = self._authenticator.authorise(context, role)
        except Exception as error:  # a bug must not reach the client as UNKNOWN with its text
            structlog.contextvars.bind_contextvars(peer=context.peer())
            call = self._telemetry.begin(path, context)
            call.finish("caller refused", error_kind(error).code.name, error)
            await abort(context, error)
        current_client.set(client)
        if client:
            structlog.contextvars.bind_contextvars(client=client)


def decode(handler: Any, data: bytes, call: Call) -> Any:
    """Decode a request message.

    Raises:
        InputError: the bytes are not a valid message.
    """
    began_at = time.perf_counter()
    try:
        return handler.request_deserializer(data)
    except DecodeError:
        raise InputError(
            "the request cannot be decoded; expected a message of rescorer.v1 with texts in UTF-8"
        ) from None
    finally:
        call.record_timings([PhaseTiming(label(Phase.PARSE), began_at, time.perf_counter() - began_at)])


@asynccontextmanager
async def guard(context: grpc.aio.ServicerContext, call: Call, pacer: RefusalPacer) -> AsyncIterator[None]:
    """Finish the call after the ``with`` block. If an error leaves the block, send the error's status."""
    try:
        yield
    except (asyncio.CancelledError, GeneratorExit):
        call.finish("call cancelled", grpc.StatusCode.CANCELLED.name)
        raise
    except Exception as error:
        kind = error_kind(error)
        call.finish("call failed" if kind.hidden else "call refused", kind.code.name, error)
        if (memory := current_memory.get(None)) is not None:
            memory.shrink(call.request_bytes)  # no answer will be made
        release_frames(error)
        if delay_s := pacer.delay_s(client_of(context), call.held_bytes):
            await asyncio.sleep(min(delay_s, (context.time_remaining() or math.inf) / 2))
        # Without the error's frames: they hold the request, and on Python 3.13 are in a cycle with the error.
        await abort(context, error.with_traceback(None))
    else:
        call.finish("call answered", grpc.StatusCode.OK.name)


def release_frames(error: BaseException | None) -> None:
    """Drop what the frames of an error refer to: a refusal may wait, and should not keep its request."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


async def abort(context: grpc.aio.ServicerContext, error: Exception) -> None:
    """Abort the call with the status of an error.

    The time after which to retry is sent twice: in the trailing metadata, for gRPC's own retries, and in the
    status details.
    """
    request_id = bind_request_id(context)
    status = rpc_status.to_status(status_from_error(error, request_id, max_text_chars=MAX_STATUS_TEXT_CHARS))
    trailing = (*status.trailing_metadata, (REQUEST_ID, request_id))
    if retry_ms := retry_after_ms(error):
        trailing += ((PUSHBACK, str(retry_ms)),)
    await context.abort(status.code, status.details, trailing)
