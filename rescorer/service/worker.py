"""Owns admission and the one thread that scores, off the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from rescorer.errors import Overloaded

Result = TypeVar("Result")


class Timed(NamedTuple):
    """How long a job took, in milliseconds."""

    queue_ms: float
    """From ``run`` until the job began, waiting for room included."""
    compute_ms: float


class Worker:
    """Runs jobs one at a time, in the order they were admitted.

    Admission is counted here and not by gRPC, whose own limit would also refuse health checks.

    Args:
        max_in_flight: lists that may be waiting or running.
    """

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._room = asyncio.Condition()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    async def run(
        self, job: Callable[[], Result], lists: int = 0, *, wait: bool = False
    ) -> tuple[Result, Timed]:
        """The job's result. Cancelled while it waits, for its caller is gone, a job never starts.

        Args:
            lists: room the job takes.
            wait: for room, instead of being refused.

        Raises:
            Overloaded: there is no room.
        """
        arrived = time.perf_counter()

        def timed() -> tuple[Result, Timed]:
            began = time.perf_counter()
            result = job()
            return result, Timed((began - arrived) * 1e3, (time.perf_counter() - began) * 1e3)

        async with self._room:
            if wait:
                await self._room.wait_for(lambda: self._has_room(lists))
            elif not self._has_room(lists):
                raise Overloaded(
                    f"{self._in_flight} lists are in flight, at most {self._max_in_flight} may be; try later"
                )
            self._in_flight += lists
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, timed)
        finally:
            self._in_flight -= lists
            async with self._room:
                self._room.notify_all()

    def _has_room(self, lists: int) -> bool:
        return self._in_flight + lists <= self._max_in_flight

    def close(self) -> None:
        """Drops what waits; the running job ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)
