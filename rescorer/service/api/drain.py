"""Owns what a server that is told to stop waits for: answers under way, and not clients that say nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, TypeVar

import grpc

from rescorer.errors import Unavailable

Message = TypeVar("Message")

LAST_READ_S = 0.1
"""For the end of a stream that has come but is not read yet: that client has all its answers."""


class Drain:
    """Knows whether the server is told to stop, and which calls are not answered yet."""

    def __init__(self) -> None:
        self._told = asyncio.Event()
        self._open = 0
        self._last_opened = 0.0
        self._none_open = asyncio.Event()
        self._none_open.set()

    def begin(self) -> None:
        """Ends the streams: each at once where it waits for its client, else after the message in hand."""
        self._told.set()

    def opened(self, context: grpc.aio.ServicerContext) -> None:
        """Counts a call until its answer is sent or its client is gone."""
        self._open += 1
        self._last_opened = time.monotonic()
        self._none_open.clear()
        context.add_done_callback(self._closed)  # type: ignore[arg-type]  # the stubs lack Protocol

    def _closed(self, _: Any) -> None:
        self._open -= 1
        if not self._open:
            self._none_open.set()

    async def quiet(self, seconds: float, at_most_s: float) -> None:
        """Waits until no call has come for so long."""
        began = time.monotonic()
        while (now := time.monotonic()) < (last := max(self._last_opened, began)) + seconds:
            if now >= began + at_most_s:
                return
            await asyncio.sleep(last + seconds - now)

    async def answered(self) -> None:
        """Waits until no call is open."""
        await self._none_open.wait()

    async def messages(self, requests: AsyncIterator[Message]) -> AsyncGenerator[Message, None]:
        """What a client sends, to its end.

        Raises:
            Unavailable: the server is told to stop first.
        """
        told = asyncio.ensure_future(self._told.wait())
        try:
            while (message := await next_message(anext(requests, None), told)) is not None:
                yield message
        finally:
            told.cancel()


async def next_message(read: Awaitable[Message | None], told: asyncio.Future[Any]) -> Message | None:
    """The next message, None at the end; raises Unavailable where the server is told to stop before."""
    reading = asyncio.ensure_future(read)
    try:
        await asyncio.wait((reading, told), return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            await asyncio.wait((reading,), timeout=LAST_READ_S)
            if not reading.done() or reading.result() is not None:
                raise Unavailable("shutting down; send what is not answered to another server")
        return reading.result()
    finally:
        reading.cancel()
