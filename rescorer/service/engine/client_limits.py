"""Bound what each client may take: memory, streams, time and refusals.

An answer stays in memory until the client's flow control has let all of it through, although the method that
made it has returned. Only then does gRPC end the call, or continue with the stream.

A refusal costs a front end about a millisecond of its core, and more if the request is large. It is sent
at once, and says when to come back. But a client that repeats refused calls at once, whatever they say, could
keep the front end from reading the calls of others. So refusals that would take more than a part of the front
end's time are delayed. A refusal that waits costs nothing, and slows the client down, because HTTP/2 bounds
the calls that a connection may have open.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from rescorer.errors import Overloaded
from rescorer.service.engine.admission import Quota
from rescorer.service.listener import current_call_canceller, mark_refused, mark_served, on_call_done

log = structlog.get_logger()

MIN_ARRIVAL_S = 1.0
"""A request may take this long to arrive, even if other requests wait for its place."""


class Arrivals:
    """Places for requests that are being received. Calls without a place wait, and get places in their order.

    gRPC keeps at most ``WINDOW_BYTES`` of a request that no method has asked for, and all of a request with a
    place. If all places are taken and a call waits, the request that has been arriving longest loses its
    place, after at least ``MIN_ARRIVAL_S``. So clients that send half a request keep no others out.

    Args:
        capacity: number of places.
    """

    def __init__(self, capacity: int) -> None:
        self._places = asyncio.Semaphore(capacity)
        self._arriving: dict[asyncio.Timeout, float] = {}  # since when, by the loop's clock; oldest first
        self._n_waiting = 0
        self._revoking: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def hold(self, timeout: asyncio.Timeout) -> AsyncIterator[None]:
        """Take a place for the duration of the ``with`` block.

        Args:
            timeout: surrounds the block, and expires at once if the place is lost.
        """
        self._n_waiting += 1
        self._plan_to_revoke()
        try:
            await self._places.acquire()
        finally:
            self._n_waiting -= 1
        self._arriving[timeout] = asyncio.get_running_loop().time()
        self._plan_to_revoke()
        try:
            yield
        finally:
            self._arriving.pop(timeout, None)
            self._places.release()

    def _plan_to_revoke(self) -> None:
        """If a call waits, plan to revoke the place of the oldest arrival as soon as this is allowed."""
        if self._revoking is None and self._n_waiting and self._places.locked() and self._arriving:
            due = next(iter(self._arriving.values())) + MIN_ARRIVAL_S
            self._revoking = asyncio.get_running_loop().call_at(due, self._revoke)

    def _revoke(self) -> None:
        self._revoking = None
        now = asyncio.get_running_loop().time()
        n_due = sum(now - since >= MIN_ARRIVAL_S for since in self._arriving.values())
        for timeout in list(self._arriving)[: min(n_due, self._n_waiting)]:
            del self._arriving[timeout]
            timeout.reschedule(now)
        self._plan_to_revoke()


CALL_BYTES = 16_384
"""Memory of an open call in addition to its messages."""
RETRY_AFTER_S = 1.0
"""Time after which a refused caller should try again."""
GC_DELAY_S, COLLECTIONS = 0.1, 2
"""Delay of a garbage collection after a call was cancelled, and number of collections. gRPC leaves streams in
reference cycles. The first collection only ends the streams, so a second one is needed."""

current_memory: ContextVar[Reservation] = ContextVar("memory")
"""The reservation of the call that the current task handles."""


class CallMemory:
    """Counts and limits the bytes of memory that all calls of a server hold. Create it in the event loop.

    Args:
        quota: shares the bytes among the clients.
        max_unread_s: how long an answer may wait for its client to read it, before the call is cancelled.
        on_dropped: called for each call that is cancelled because its answer was not read.
    """

    def __init__(
        self, quota: Quota, max_unread_s: float, on_dropped: Callable[[], None] = lambda: None
    ) -> None:
        self.quota, self.max_unread_s = quota, max_unread_s
        self.unread_bytes = 0
        """Size of the answers that clients have not read yet."""
        self._on_dropped = on_dropped
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._n_collections = 0

    async def open(self, client: Hashable) -> Reservation:
        """Reserve memory for the call that the current task handles, until gRPC has finished the call.

        Raises:
            Overloaded: there is not enough memory left.
        """
        reservation = Reservation(self, client)
        await reservation.hold(CALL_BYTES)
        current_memory.set(reservation)
        on_call_done(lambda _: reservation.close())
        return reservation

    async def take(self, client: Hashable, n_bytes: int, *, wait: bool) -> None:
        """Take bytes of the quota. If there are not enough, either wait for them or raise Overloaded."""
        while n_bytes > 0 and (reason := self._reason_to_refuse(client, n_bytes)):
            if not wait:
                raise Overloaded(
                    f"{reason}; read the answers to earlier calls, and try again later",
                    retry_after_s=RETRY_AFTER_S,
                )
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(freed)
            await freed
        self.quota.add(client, n_bytes)

    def give_back(self, client: Hashable, n_bytes: int) -> None:
        self.quota.add(client, -n_bytes)
        while self._waiting:
            if not (freed := self._waiting.popleft()).done():
                freed.set_result(None)

    def drop(self, reservation: Reservation, cancel: Callable[[], None]) -> None:
        """Cancel a call whose answer was not read in time."""
        log.warning(
            "answer not read in time; its call is cancelled",
            bytes=reservation.unread_bytes,
            unread_s=self.max_unread_s,
        )
        self._on_dropped()
        cancel()
        if not self._n_collections:
            asyncio.get_running_loop().call_later(GC_DELAY_S, self._collect)
        self._n_collections = COLLECTIONS

    def _collect(self) -> None:
        gc.collect()
        self._n_collections -= 1
        if self._n_collections:
            asyncio.get_running_loop().call_later(GC_DELAY_S, self._collect)

    def _reason_to_refuse(self, client: Hashable, n_bytes: int) -> str:
        return self.quota.reason_to_refuse(client, n_bytes, shared=self.quota.has_others(client))


class Reservation:
    """The bytes of one call: of the call itself, of its request, and of its answer until that is read."""

    def __init__(self, memory: CallMemory, client: Hashable) -> None:
        self._memory, self._client = memory, client
        self._cancel = current_call_canceller()
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self.unread_bytes = 0

    async def hold(self, n_bytes: int, *, wait: bool = False) -> None:
        """Hold more bytes.

        Args:
            wait: wait for them instead of refusing the call.

        Raises:
            Overloaded: there is not enough memory left.
        """
        await self._memory.take(self._client, n_bytes, wait=wait)
        self._held += n_bytes

    def shrink(self, n_bytes: int) -> None:
        """Keep memory for the call itself and for ``n_bytes`` of messages, and give back the rest."""
        excess = self._held - CALL_BYTES - n_bytes
        if excess > 0:
            self._memory.give_back(self._client, excess)
            self._held -= excess

    def post(self, n_bytes: int, request_bytes: int = 0) -> None:
        """Hold the bytes of an answer until its client has read it. Cancel the call if that takes too long.

        Args:
            request_bytes: size of the request, which gRPC keeps as long as the answer.
        """
        self.shrink(n_bytes + request_bytes)
        self.unread_bytes = n_bytes
        self._memory.unread_bytes += n_bytes
        if self._cancel is not None:
            self._timer = asyncio.get_running_loop().call_later(
                self._memory.max_unread_s, self._memory.drop, self, self._cancel
            )

    def mark_read(self) -> None:
        """Give back all bytes but those of the call: the client has read the answer, and may ask again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._memory.unread_bytes -= self.unread_bytes
        self.unread_bytes = 0
        self.shrink(0)

    def close(self) -> None:
        """Give back everything: gRPC has finished the call."""
        self.mark_read()
        self._memory.give_back(self._client, self._held)
        self._held = 0
        self._cancel = None  # it refers to the call's tasks, and their contexts to this object


MAX_PER_S = 400.0
"""Most refusals per second for all clients together, who share them equally: less than half of a core."""
BURST = 100
"""Number of refusals that a client gets without delay. Later ones are spaced out."""
BYTES_PER_REFUSAL = 65_536
"""A request that takes so much memory, decoded, costs as much to read as it costs to refuse one."""
MAX_DELAY_S = 5.0


class RefusalPacer:
    """Decides how long the next refusal of a client should be delayed.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at: dict[Hashable, float] = {}
        """Time at which each client's latest refusal was due. The client with the oldest one comes first."""

    def delay_s(self, client: Hashable, n_bytes: int = 0) -> float:
        """Count a refusal, and return the seconds by which it should be delayed.

        Args:
            n_bytes: memory of the request, decoded: many small elements cost more than their bytes.
        """
        now = self._clock()
        unused_since = now - BURST / MAX_PER_S
        while self._due_at and self._due_at[oldest := next(iter(self._due_at))] < unused_since:
            del self._due_at[oldest]  # this client has its whole burst again
        due_at = self._due_at.pop(client, unused_since)
        due_at += (len(self._due_at) + 1) * (1 + n_bytes / BYTES_PER_REFUSAL) / MAX_PER_S
        self._due_at[client] = due_at = min(due_at, now + MAX_DELAY_S)
        return max(0.0, due_at - now)


Requests = AsyncIterator[Any]


class SlowClientInterceptor(grpc.aio.ServerInterceptor):
    """Bound the time that calls wait for their clients.

    gRPC waits for ever, and reads the request of a unary call before any other interceptor or the method is
    reached. So this interceptor is the first, and reads the requests itself.

    Args:
        max_request_s: longest time until the request of a call that is not a stream has arrived.
        max_idle_s: longest time for which a message of a stream may wait to be read.
        max_arriving: largest number of requests that arrive at the same time, except those of streams.
        silent_services: services whose streams end without an error if no request comes for ``max_idle_s``.
    """

    def __init__(
        self, max_request_s: float, max_idle_s: float, max_arriving: int, silent_services: Collection[str]
    ) -> None:
        self._arrivals = Arrivals(max_arriving)
        self._max_request_s, self._max_idle_s = max_request_s, max_idle_s
        self._silent_services = frozenset(silent_services)
        self._ending: set[asyncio.Task[None]] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        converters = handler.request_deserializer, handler.response_serializer

        async def answer(requests: Requests, context: grpc.aio.ServicerContext) -> Any:
            try:
                return await handler.unary_unary(await self._read_request(context), context)
            except grpc.aio.AbortError as error:
                mark_refused()
                raise without_frames(error)  # noqa: B904 (it is the same error)

        async def answer_one(requests: Requests, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            request = await self._read_request(context)
            async for response in handler.unary_stream(request, context):
                yield response

        async def read_until_idle(requests: Requests, context: grpc.aio.ServicerContext) -> Requests:
            with suppress(TimeoutError, StopAsyncIteration):
                while True:
                    async with asyncio.timeout(self._max_idle_s):
                        request = await read_or_abort(anext(requests), context)
                    yield request

        def answer_until_idle(requests: Requests, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            return handler.stream_stream(read_until_idle(requests, context), context)

        if not handler.response_streaming:
            return grpc.stream_unary_rpc_method_handler(answer, *converters)
        is_silent = handler_call_details.method.split("/")[1] in self._silent_services
        behaviour = answer_until_idle if is_silent else handler.stream_stream
        behaviour = behaviour if handler.request_streaming else answer_one
        return grpc.stream_stream_rpc_method_handler(self._end_unread(behaviour), *converters)

    def _end_unread(self, behaviour: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def answer(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            begun = False
            try:
                async for response in behaviour(requests, context):
                    if not begun:  # a status cannot be sent while a message waits together with the headers
                        await context.send_initial_metadata(())
                        begun = True
                    with self._end_unless_read(context):
                        yield response
                mark_served()  # the client has ended the stream, perhaps without a message
            except grpc.aio.AbortError as error:
                mark_refused()
                raise without_frames(error)  # noqa: B904 (it is the same error)

        return answer

    async def _read_request(self, context: grpc.aio.ServicerContext) -> Any:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._max_request_s) as timeout, self._arrivals.hold(timeout):
                # gRPC's iterator of requests would be in a reference cycle with the call and its answer.
                request = await read_or_abort(context.read(), context)
        except TimeoutError:
            if time.monotonic() - began < self._max_request_s:
                reason = "the request arrives slowly, and others wait for its place; try again later"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
            reason = f"the request did not arrive within {self._max_request_s:g} s (max_wait_s)"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message; expected one")
        return request

    @contextmanager
    def _end_unless_read(self, context: grpc.aio.ServicerContext) -> Iterator[None]:
        """End the call of the current task if the block, in which gRPC writes a message, takes too long."""
        call, loop = asyncio.current_task(), asyncio.get_running_loop()

        def end() -> None:
            ending = loop.create_task(self._end(context, call))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

        timer = loop.call_later(self._max_idle_s, end)
        try:
            yield
        finally:
            timer.cancel()

    async def _end(self, context: grpc.aio.ServicerContext, call: asyncio.Task[Any] | None) -> None:
        """Stop a call's method, and send a status. A client that reads later finds it after the message."""
        if call is not None:
            call.cancel()
        reason = f"a message was not read for {self._max_idle_s:g} s (max_idle_s); open the stream again"
        with suppress(grpc.aio.AbortError):
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)


async def read_or_abort(read: Awaitable[Any], context: grpc.aio.ServicerContext) -> Any:
    """Return the next message; abort the call if the message cannot be decoded.

    gRPC itself would send the text of the exception.
    """
    try:
        message = await read
        if message is not grpc.aio.EOF:
            mark_served()
        return message
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be decoded")


def without_frames(error: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """Remove the frames of an aborted call from its error.

    gRPC keeps the error in a reference cycle. With the frames, the request would stay in memory until the
    next full garbage collection. Since this depends on objects, not bytes, thousands of refused requests
    might come before it.
    """
    error.__context__ = None
    return error.with_traceback(None)


REVOKED_S = 1.0
"""Time that a stream may take to end after it has lost its place. A client that does not read could make it
wait for ever, so the stream is reset then."""


class StreamSlot:
    """The place of one open stream, held by the task that handles it."""

    def __init__(self, client: Hashable) -> None:
        self.client = client
        self.idle_since: float | None = time.monotonic()
        """Time since which the stream waits for its client; None while a message is being answered."""
        self.revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that is resolved when another client gets this place. Then the stream should end."""
        self._task = asyncio.current_task()
        self._reset: asyncio.TimerHandle | None = None

    def mark_idle(self) -> None:
        self.idle_since = time.monotonic()

    def mark_busy(self) -> None:
        self.idle_since = None

    def revoke(self) -> None:
        self.revoked.set_result(None)
        if self._task is not None:
            self._reset = asyncio.get_running_loop().call_later(REVOKED_S, self._task.cancel)

    def release(self) -> None:
        if self._reset is not None:
            self._reset.cancel()


class StreamSlots:
    """The places for open streams of one kind.

    When all places are taken and a client asks for one, another client loses a place to it: the client that
    has the most streams and an idle one among them. The stream that has been idle longest ends. This happens
    only if the client that loses a place still has at least as many streams as the asking client then has.

    Args:
        name: what the streams are called in messages, and in the names of settings.
        capacity, per_client: largest number of streams, over all clients and per client.
    """

    def __init__(self, name: str, capacity: int, per_client: int) -> None:
        self._name, self._capacity, self._per_client = name, capacity, per_client
        self._by_client: dict[Hashable, set[StreamSlot]] = {}
        self.held = 0

    @contextmanager
    def hold(self, client: Hashable) -> Iterator[StreamSlot]:
        """Take a place for the duration of the ``with`` block.

        Raises:
            Overloaded: the client has too many streams, or no other client can lose one.
        """
        own = len(self._by_client.get(client, ()))
        if own >= self._per_client:
            reason = f"this client has {own} {self._name} open; expected at most {self._per_client} "
            raise Overloaded(reason + f"(max_client_{self._name})", retry_after_s=RETRY_AFTER_S)
        if self.held >= self._capacity:
            self._revoke_from_largest(own)
        slot = StreamSlot(client)
        self._by_client.setdefault(client, set()).add(slot)
        self.held += 1
        try:
            yield slot
        finally:
            slot.release()
            self._remove(slot)

    def _revoke_from_largest(self, own: int) -> None:
        """Revoke a place of the client with the most streams, for a client that already has ``own``."""
        candidates = [
            (len(slots), -slot.idle_since, slot)
            for slots in self._by_client.values()
            if len(slots) >= own + 2
            for slot in slots
            if slot.idle_since is not None
        ]
        if not candidates:
            reason = f"{self.held} {self._name} are open; expected at most {self._capacity} "
            raise Overloaded(f"{reason}(max_{self._name}); try again later", retry_after_s=RETRY_AFTER_S)
        _, _, slot = max(candidates, key=lambda candidate: candidate[:2])
        self._remove(slot)
        slot.revoke()

    def _remove(self, slot: StreamSlot) -> None:
        slots = self._by_client.get(slot.client, set())
        if slot in slots:
            slots.remove(slot)
            self.held -= 1
        if not slots:
            self._by_client.pop(slot.client, None)
