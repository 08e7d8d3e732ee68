"""Time that a message or a batch spent in each phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from rescorer.runtime.profiling import Phase, Stopwatch

Result = TypeVar("Result")

QUEUE = "queue"
"""The phase of waiting for a worker."""


class PhaseTiming(NamedTuple):
    """One period spent in a phase."""

    phase: str
    """A ``Phase`` as written by ``label``, or ``QUEUE``."""
    began: float
    """Start, in ``time.perf_counter`` seconds."""
    seconds: float


def label(phase: Phase) -> str:
    """Return the name of a phase in metrics, spans and the log.

    >>> label(Phase.NGRAM)
    'ngram'
    """
    return phase.name.lower()


def seconds_of(stopwatch: Stopwatch) -> dict[str, float]:
    """Return seconds by phase, without the phases that took no time."""
    return {label(phase): seconds for phase, seconds in stopwatch.seconds.items() if seconds}


def timings_from_seconds(seconds: Mapping[str, float], began: float) -> list[PhaseTiming]:
    """Place phases whose total times are known, but not their starts, one after the other."""
    timings = []
    for phase, phase_seconds in seconds.items():
        timings.append(PhaseTiming(phase, began, phase_seconds))
        began += phase_seconds
    return timings


def run_timed(job: Callable[[], Result]) -> tuple[Result, list[PhaseTiming]]:
    """Run a job; return its result and its timings."""
    stopwatch = Stopwatch()
    began = time.perf_counter()
    with stopwatch.running():
        result = job()
    return result, timings_from_seconds(seconds_of(stopwatch), began)


def sum_by_phase(timings: Iterable[PhaseTiming]) -> dict[str, float]:
    """Sum the seconds of each phase."""
    total: dict[str, float] = {}
    for phase, _, seconds in timings:
        total[phase] = total.get(phase, 0.0) + seconds
    return total
