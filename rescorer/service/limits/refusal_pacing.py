"""Space out the refusals of clients that send many more calls than are answered.

A refusal costs a front end about a millisecond of its core. A client that repeats refused calls at once would
keep the front end from reading the calls of others, however fairly these are scored. A refusal that waits
costs nothing, and since HTTP/2 bounds the calls that a connection may have open, it slows the client down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

MAX_PER_CLIENT_PER_S, MAX_PER_S = 100.0, 400.0
"""Refusals per second to one client, and to all clients that are being refused, which share it equally."""
BURST = 50
"""Refusals that a client gets at once before its further ones are spaced out."""
MAX_DELAY_S = 5.0


class RefusalPacer:
    """Decides how long the next refusal of a client should wait.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at: dict[Hashable, float] = {}
        """When the latest refusal was due, by client; the client with the oldest refusal comes first."""

    def delay_s(self, client: Hashable) -> float:
        """Count a refusal, and return the seconds by which it should be delayed."""
        now = self._clock()
        self._forget_before(now - BURST / MAX_PER_CLIENT_PER_S)
        due_at = self._due_at.pop(client, now - BURST / MAX_PER_CLIENT_PER_S)
        due_at += max(1 / MAX_PER_CLIENT_PER_S, (len(self._due_at) + 1) / MAX_PER_S)
        self._due_at[client] = due_at = min(due_at, now + MAX_DELAY_S)
        return max(0.0, due_at - now)

    def _forget_before(self, time_s: float) -> None:
        """Forget clients that have used none of their burst since this time."""
        while self._due_at and self._due_at[oldest := next(iter(self._due_at))] < time_s:
            del self._due_at[oldest]
