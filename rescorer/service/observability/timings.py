"""Owns laps: what one message, or one batch, spent its time on and when, by phase."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from rescorer.profiling import Phase, Stopwatch

Result = TypeVar("Result")

QUEUE = "queue"
"""Waiting for a scorer, in a lap's ``phase``."""


class Lap(NamedTuple):
    """One phase, once."""

    phase: str
    """A ``Phase`` as ``label`` writes it, or ``QUEUE``."""
    began: float
    """In ``time.perf_counter`` seconds."""
    seconds: float


def label(phase: Phase) -> str:
    """As metrics, spans and the log call a phase.

    >>> label(Phase.NGRAM)
    'ngram'
    """
    return phase.name.lower()


def seconds_of(stopwatch: Stopwatch) -> dict[str, float]:
    """Seconds by phase, of those that were met."""
    return {label(phase): seconds for phase, seconds in stopwatch.seconds.items() if seconds}


def laps_of(seconds: Mapping[str, float], began: float) -> list[Lap]:
    """Laps of phases whose sums alone are known, laid end to end."""
    laps = []
    for phase, each in seconds.items():
        laps.append(Lap(phase, began, each))
        began += each
    return laps


def with_laps(job: Callable[[], Result]) -> tuple[Result, list[Lap]]:
    """What a job gives, and its laps."""
    stopwatch = Stopwatch()
    began = time.perf_counter()
    with stopwatch.running():
        result = job()
    return result, laps_of(seconds_of(stopwatch), began)


def sums(laps: Iterable[Lap]) -> Counter[str]:
    """Seconds by phase."""
    total: Counter[str] = Counter()
    for lap in laps:
        total[lap.phase] += lap.seconds  # type: ignore[assignment]  # the stubs count in integers
    return total
