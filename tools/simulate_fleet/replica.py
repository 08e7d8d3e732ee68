"""One server: a front end that takes lists one by one, a queue, and workers that take batches from it.

As in the service (``rescorer.service.engine.batcher``), a worker that becomes free takes all that waits, up
to a batch. Nothing is refused, and lists have equal rights.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from tools.simulate_fleet.service_times import N_DRAWN, TimeModel


class Served(NamedTuple):
    """What happened to the lists that workers took."""

    start_s: np.ndarray
    """(N,) when scoring began."""
    queue_s: np.ndarray
    """(N,) time in the queue before that, as in the metric ``rescorer_queue_seconds``."""
    response_s: np.ndarray
    """(N,) time from arrival until all is done."""


class Replica:
    """A server in simulated time, which can be advanced piece by piece.

    Args:
        workers: number of workers.
        max_lists: largest batch, in lists.
        start_s: time at which it can begin.
    """

    def __init__(
        self,
        times: TimeModel,
        workers: int,
        max_lists: int,
        generator: np.random.Generator,
        start_s: float = 0.0,
    ) -> None:
        self._times, self._generator, self._max_lists = times, generator, max_lists
        self._efficiency = times.batch_efficiency(max_lists)
        self._free_s = [start_s] * workers  # a heap
        self._front_free_s = start_s
        self._arrived = np.empty(0)
        self._ready = np.empty(0)
        self._draws: list[float] = []

    @property
    def waiting(self) -> int:
        """Number of lists that no worker has taken yet."""
        return len(self._arrived)

    def advance(self, arrivals: np.ndarray, until_s: float) -> Served:
        """Let lists arrive, and return those that workers take before ``until_s``.

        Args:
            arrivals: (N,) sorted times, later than all before, and earlier than ``until_s``.
        """
        self._arrived = np.concatenate([self._arrived, arrivals])
        self._ready = np.concatenate([self._ready, self._pass_front_end(arrivals)])
        start_s, finish_s = self._take_batches(self._ready.tolist(), until_s)
        count = len(start_s)
        served = Served(
            np.array(start_s),
            np.array(start_s) - self._ready[:count],
            np.array(finish_s) - self._arrived[:count],
        )
        self._arrived, self._ready = self._arrived[count:], self._ready[count:]
        return served

    def _pass_front_end(self, arrivals: np.ndarray) -> np.ndarray:
        """Return when the front end has finished with each list: Lindley's recursion in closed form."""
        front_s = self._times.front_s
        if not front_s or not len(arrivals):
            return arrivals
        work = front_s * np.arange(1, len(arrivals) + 1)
        begin = np.maximum.accumulate(np.maximum(arrivals - (work - front_s), self._front_free_s))
        done = begin + work
        self._front_free_s = float(done[-1])
        return done

    def _take_batches(self, ready: list[float], until_s: float) -> tuple[list[float], list[float]]:
        """Return when scoring of each list began and ended, for those that are begun before ``until_s``."""
        starts: list[float] = []
        finishes: list[float] = []
        first, free_s, count = 0, self._free_s, len(ready)
        while first < count and (start := max(free_s[0], ready[first])) < until_s:
            end = first + 1
            limit = min(first + self._max_lists, count)
            while end < limit and ready[end] <= start:
                end += 1
            n_lists = end - first
            finish = start + self._draw(n_lists) * self._efficiency[n_lists]
            heapq.heapreplace(free_s, finish)
            starts += [start] * n_lists
            finishes += [finish] * n_lists
            first = end
        return starts, finishes

    def _draw(self, count: int) -> float:
        """Draw the time that some lists would take one by one."""
        if len(self._draws) < count:
            self._draws = self._times.draw(max(N_DRAWN, count), self._generator).tolist()
        return sum(self._draws.pop() for _ in range(count))
