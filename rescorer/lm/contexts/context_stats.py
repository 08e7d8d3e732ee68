"""Count the context words that recurrent networks needed, and those they recalled from their caches.

Imports no torch, because the server reports these counts even when no network is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class ContextWords:
    """Words of the distinct contexts of a batch, counted once per network."""

    needed: int = 0
    recalled: int = 0
    """Needed words that the network did not read, because their state was cached."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Add the counts of networks that the current thread runs inside the ``with`` block."""
        token = _counts.set(self)
        try:
            yield
        finally:
            _counts.reset(token)


_counts: ContextVar[ContextWords | None] = ContextVar("context_words", default=None)


def count(needed: int, recalled: int) -> None:
    """Report what a network needed and recalled to the active ``ContextWords``, if any."""
    counts = _counts.get()
    if counts is not None:
        counts.needed += needed
        counts.recalled += recalled
