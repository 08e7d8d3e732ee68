"""Owns timings: what one message, or one batch, spent its time on and when, by phase."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from rescorer.profiling import Phase, Stopwatch

Result = TypeVar("Result")

QUEUE = "queue"
"""Waiting for a worker, in a timing's ``phase``."""


class PhaseTiming(NamedTuple):
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


def timings_from_seconds(seconds: Mapping[str, float], began: float) -> list[PhaseTiming]:
    """Laps of phases whose sums alone are known, laid end to end."""
    timings = []
    for phase, each in seconds.items():
        timings.append(PhaseTiming(phase, began, each))
        began += each
    return timings


def run_timed(job: Callable[[], Result]) -> tuple[Result, list[PhaseTiming]]:
    """What a job gives, and its timings."""
    stopwatch = Stopwatch()
    began = time.perf_counter()
    with stopwatch.running():
        result = job()
    return result, timings_from_seconds(seconds_of(stopwatch), began)


def sums(timings: Iterable[PhaseTiming]) -> Counter[str]:
    """Seconds by phase."""
    total: Counter[str] = Counter()
    for timing in timings:
        total[timing.phase] += timing.seconds  # type: ignore[assignment]  # the stubs count in integers
    return total
