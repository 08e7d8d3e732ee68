"""Measure the time spent in each phase of rescoring.

Code marks its phases with ``phase(...)``; the marks cost next to nothing unless a ``Stopwatch`` is running.
Phases can be nested. Time spent in an inner phase does not count towards the outer one, so the times of all
phases add up to the total time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TypeVar

Item = TypeVar("Item")


class Phase(StrEnum):
    """Phases of rescoring, in processing order."""

    PARSE = "parse"
    TEXT = "normalise and encode"
    TRIE = "trie"
    NGRAM = "n-gram"
    NETWORK = "network"
    OUTPUT = "output layer"
    RANK = "combine and rank"
    WRITE = "write"
    OTHER = "other"
    """Everything outside the other phases."""


class Stopwatch:
    """Accumulates seconds per phase.

    Args:
        clock: returns seconds since any fixed moment.
        synchronise: waits for asynchronous work, such as a GPU's, before the clock is read.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, synchronise: Callable[[], object] = lambda: None
    ) -> None:
        self.seconds = dict.fromkeys(Phase, 0.0)
        self._clock, self._synchronise = clock, synchronise
        self._open: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the phases of the current thread inside the ``with`` block."""
        token = _stopwatch.set(self)
        try:
            with self.inside(Phase.OTHER):
                yield
        finally:
            _stopwatch.reset(token)

    @contextmanager
    def inside(self, phase: Phase) -> Iterator[None]:
        """Count the time inside the ``with`` block for ``phase``."""
        self._split()
        self._open.append(phase)
        try:
            yield
        finally:
            self._split()
            self._open.pop()

    def _split(self) -> None:
        """Credit the innermost phase with the time since the last call."""
        self._synchronise()
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


_stopwatch: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Mark the ``with`` block as part of a phase."""
    stopwatch = _stopwatch.get()
    if stopwatch is None:
        yield
    else:
        with stopwatch.inside(name):
            yield


def time_items(items: Iterable[Item], name: Phase) -> Iterator[Item]:
    """Yield the items; producing them counts towards a phase, consuming them does not."""
    iterator = iter(items)
    while True:
        with phase(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
