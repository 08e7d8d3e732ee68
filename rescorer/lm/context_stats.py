"""Owns the count of words of contexts that recurrent networks needed and recalled, for whoever asks for it.

Without torch: the server, which may have no network, holds these counts, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class ContextWords:
    """Of a batch's distinct contexts, once a network."""

    needed: int = 0
    recalled: int = 0
    """Those of them that were not read, as what a network made of them was known."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Adds what this thread's networks do meanwhile."""
        token = _counts.set(self)
        try:
            yield
        finally:
            _counts.reset(token)


_counts: ContextVar[ContextWords | None] = ContextVar("context_words", default=None)


def count(needed: int, recalled: int) -> None:
    """What a network did, for those who count."""
    counts = _counts.get()
    if counts is not None:
        counts.needed += needed
        counts.recalled += recalled
