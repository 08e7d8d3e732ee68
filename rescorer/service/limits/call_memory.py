"""Bound the memory of calls: of the requests being answered, and of the answers that clients have not read.

gRPC ends a call, and goes on with a stream, when the client's flow control has let all of the answer through.
Until then the answer stays in memory, although the method that made it has returned.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar

import structlog

from rescorer.errors import Overloaded
from rescorer.service.engine.quota import Quota
from rescorer.service.net.grpc_listener import current_call_canceller, on_call_done

CALL_BYTES = 16_384
"""Memory of an open call in addition to its messages."""
RETRY_AFTER_S = 1.0
"""When a refused caller should try again."""
GC_DELAY_S, COLLECTIONS = 0.1, 2
"""How long after a cancelled call its memory is collected, and how often: gRPC leaves streams in reference
cycles, which the first collection only ends."""

log = structlog.get_logger()

current_memory: ContextVar[Reservation] = ContextVar("memory")
"""The reservation of the call that this task handles."""


class CallMemory:
    """The bytes of all calls of a server; create it in the event loop.

    Args:
        quota: shares the bytes among the clients.
        max_unread_s: how long an answer may wait for its client to read it, before the call is cancelled.
        on_dropped: called for each call that is cancelled because its answer was not read.
    """

    def __init__(
        self, quota: Quota, max_unread_s: float, on_dropped: Callable[[], None] = lambda: None
    ) -> None:
        self.quota = quota
        self.max_unread_s = max_unread_s
        self.unread_bytes = 0
        """Size of the answers that clients have not read yet."""
        self._on_dropped = on_dropped
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._n_collections = 0

    async def open(self, client: Hashable) -> Reservation:
        """Reserve memory for the call that this task handles, until gRPC has finished the call.

        Raises:
            Overloaded: If there is not enough memory left.
        """
        reservation = Reservation(self, client)
        await reservation.hold(CALL_BYTES)
        current_memory.set(reservation)
        on_call_done(lambda _: reservation.close())
        return reservation

    async def take(self, client: Hashable, n_bytes: int, *, wait: bool) -> None:
        """Take bytes; wait for them, or raise Overloaded, if there are not enough."""
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
        shared = self.quota.has_others(client)
        return self.quota.reason_to_refuse(client, n_bytes, shared=shared)


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
            Overloaded: If there is not enough memory left.
        """
        await self._memory.take(self._client, n_bytes, wait=wait)
        self._held += n_bytes

    def shrink(self, n_bytes: int) -> None:
        """Give back what exceeds the call itself and ``n_bytes`` of messages."""
        excess = self._held - CALL_BYTES - n_bytes
        if excess > 0:
            self._memory.give_back(self._client, excess)
            self._held -= excess

    def post(self, n_bytes: int, request_bytes: int = 0) -> None:
        """Hold an answer until its client has read it; if the client takes too long, cancel the call.

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
        """Give back everything but the call itself: the client has read the answer, and may ask again."""
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
