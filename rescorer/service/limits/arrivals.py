"""Bound the memory of requests that are still arriving, which no quota counts yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MIN_ARRIVAL_S = 1.0
"""A request may take this long to arrive even if others wait for its place."""


class Arrivals:
    """Places for requests that are being received; calls without one wait, longest wait first.

    gRPC keeps at most ``WINDOW_BYTES`` of a request before somebody asks for it, and then all of it. If all
    places are taken, the request that has been arriving longest loses its place after ``MIN_ARRIVAL_S``, so
    that clients that send half a request keep nobody out.

    Args:
        capacity: number of places.
    """

    def __init__(self, capacity: int) -> None:
        self._places = asyncio.Semaphore(capacity)
        self._arriving: dict[asyncio.Timeout, float] = {}  # time of the loop since when, longest first
        self._n_waiting = 0
        self._revoking: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def hold(self, timeout: asyncio.Timeout) -> AsyncIterator[None]:
        """Take a place for the duration of the ``with`` block.

        Args:
            timeout: surrounds the block; it expires at once if the place is lost.
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
        """End the oldest arrival when it may be ended, if anyone still waits then."""
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
