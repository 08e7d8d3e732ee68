"""Let a stopping server finish its open calls, and end streams whose clients send nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

from rescorer.errors import Unavailable
from rescorer.service.limits.stream_slots import StreamSlot
from rescorer.service.net.grpc_listener import on_call_done

Message = TypeVar("Message")

LAST_READ_S = 0.1
"""How long a stopping server waits for a client to close its stream. The end of the stream may have arrived
already; then the client has all its answers and needs no error."""


class Drain:
    """Whether the server should stop, and which of its calls are still open."""

    def __init__(self) -> None:
        self._stop_requested = asyncio.Event()
        self._n_open = 0
        self._last_opened = 0.0
        self._none_open = asyncio.Event()
        self._none_open.set()

    def begin(self) -> None:
        """End the streams: immediately if they are waiting for the client, otherwise after the current
        message."""
        self._stop_requested.set()

    def add_call(self) -> None:
        """Count this task's call as open until its answer is sent or its client disconnects."""
        self._n_open += 1
        self._last_opened = time.monotonic()
        self._none_open.clear()
        on_call_done(self._remove_call)

    def _remove_call(self, _: Any) -> None:
        self._n_open -= 1
        if not self._n_open:
            self._none_open.set()

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
            slot: place of the stream, idle while this method waits for a message.
            max_idle_s: longest wait for a message.

        Raises:
            Unavailable: If the server is stopping, the client sends nothing for too long, or the stream lost
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
