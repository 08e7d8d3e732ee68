"""Owns the names of the phases a list goes through, and the stopwatch that somebody may hold while it does;
where nobody does, a phase costs nothing worth speaking of.

Phases nest, and the inner one's time is not the outer one's too: the phases of a recording sum up to it.
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
    """In the order that a list meets them."""

    PARSE = "parse"
    TEXT = "normalise and encode"
    TRIE = "trie"
    NGRAM = "n-gram"
    NETWORK = "network"
    OUTPUT = "output layer"
    RANK = "combine and rank"
    WRITE = "write"
    OTHER = "other"
    """Outside of all others."""


class Stopwatch:
    """Seconds by phase.

    Args:
        clock: seconds of any origin.
        settle: waits for work that was only begun, such as a GPU's.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, settle: Callable[[], object] = lambda: None
    ) -> None:
        self.seconds = dict.fromkeys(Phase, 0.0)
        self._clock, self._settle = clock, settle
        self._open: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measures the phases of what this thread does meanwhile."""
        token = _stopwatch.set(self)
        try:
            with self.inside(Phase.OTHER):
                yield
        finally:
            _stopwatch.reset(token)

    @contextmanager
    def inside(self, phase: Phase) -> Iterator[None]:
        self._split()
        self._open.append(phase)
        try:
            yield
        finally:
            self._split()
            self._open.pop()

    def _split(self) -> None:
        """Gives the time since the last call to the innermost phase."""
        self._settle()
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


_stopwatch: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """What happens inside belongs to the phase."""
    stopwatch = _stopwatch.get()
    if stopwatch is None:
        yield
    else:
        with stopwatch.inside(name):
            yield


def timed(items: Iterable[Item], name: Phase) -> Iterator[Item]:
    """The items; getting each belongs to the phase, what is done with it does not."""
    iterator = iter(items)
    while True:
        with phase(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
