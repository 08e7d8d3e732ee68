"""One simulated server: when lists arrive, how long each takes, and how workers take them from a queue.

As in the service (``rescorer.service.engine.engine``), a worker that becomes free takes all waiting lists, up
to a full batch. No list is refused or preferred.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rescorer.bench.load import ServiceTimes, read_service_times
from rescorer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of arrivals: bursts of ``burst_s`` seconds, at ``factor`` times the rate between bursts.

    Bursts and the times between them have exponential lengths, so that arrivals are a Markov-modulated
    Poisson process. With a factor of 1, they are a plain Poisson process.
    """

    factor: float = 1.0
    burst_s: float = 5.0
    """Mean duration of a burst."""
    between_s: float = 20.0
    """Mean time between two bursts."""

    def __post_init__(self) -> None:
        if self.factor < 1 or not (self.burst_s > 0 and self.between_s > 0):
            raise ConfigError("bursts: expected a factor of at least 1 and durations above 0 s")


def draw_arrivals(
    rate_per_s: float, duration_s: float, pattern: Pattern, generator: np.random.Generator
) -> np.ndarray:
    """Draw the arrival times of ``duration_s`` seconds.

    Returns:
        (N,) float64, sorted, in seconds from 0; N varies around ``rate_per_s * duration_s``.
    """
    if pattern.factor == 1:
        return _draw_poisson(rate_per_s, 0.0, duration_s, generator)
    cycle_s = pattern.burst_s + pattern.between_s
    quiet_rate_per_s = rate_per_s * cycle_s / (pattern.factor * pattern.burst_s + pattern.between_s)
    parts, start_s = [], 0.0
    is_burst = generator.random() < pattern.burst_s / cycle_s
    while start_s < duration_s:
        end_s = start_s + generator.exponential(pattern.burst_s if is_burst else pattern.between_s)
        phase_rate_per_s = quiet_rate_per_s * (pattern.factor if is_burst else 1)
        parts.append(_draw_poisson(phase_rate_per_s, start_s, min(end_s, duration_s), generator))
        start_s, is_burst = end_s, not is_burst
    return np.concatenate(parts)


def _draw_poisson(
    rate_per_s: float, start_s: float, end_s: float, generator: np.random.Generator
) -> np.ndarray:
    count = generator.poisson(rate_per_s * (end_s - start_s))
    return np.sort(generator.uniform(start_s, end_s, count))


N_DRAWN = 1 << 16
"""Number of service times that are drawn at once."""


@dataclass(frozen=True)
class TimeModel:
    """Time that lists take in a worker and in the front end.

    A batch takes as long as its lists would take alone, times the efficiency of the batch size.

    Args:
        draw: function that draws the times, (N,), that a worker needs for N lists scored alone, in seconds.
        front_s: time of the front end per list, in seconds.
        efficiency: time per list in a batch relative to that of a list alone, by lists per batch. For other
            sizes, it is interpolated over the logarithm of the size.
    """

    draw: Callable[[int, np.random.Generator], np.ndarray]
    mean_s: float
    front_s: float = 0.0
    efficiency: Mapping[int, float] = field(default_factory=lambda: {1: 1.0})

    def batch_efficiency(self, max_lists: int) -> list[float]:
        """Return the efficiency of batches of 0, 1, …, ``max_lists`` lists."""
        sizes = np.log([size for size, _ in sorted(self.efficiency.items())])
        values = [value for _, value in sorted(self.efficiency.items())]
        wanted = np.log(np.arange(1, max_lists + 1))
        return [1.0, *np.interp(wanted, sizes, values).tolist()]

    def capacity_per_s(self, workers: int, max_lists: int) -> float:
        """Capacity of one server in lists per second, which either its workers or its front end limit."""
        per_list_s = self.mean_s * self.batch_efficiency(max_lists)[max_lists] / workers
        return 1 / max(per_list_s, self.front_s)


def measured(times: ServiceTimes) -> TimeModel:
    """Make a model that draws from measured times."""
    alone_s = np.array(times.worker_s[1])
    mean_s = float(alone_s.mean())
    efficiency = {
        size: float(np.mean(seconds)) / size / mean_s for size, seconds in sorted(times.worker_s.items())
    }
    front_s = float(np.median(times.front_s[max(times.front_s)])) / max(times.front_s)
    return TimeModel(
        lambda count, generator: generator.choice(alone_s, count),
        mean_s,
        front_s,
        efficiency,
    )


def exponential(mean_s: float) -> TimeModel:
    return TimeModel(lambda count, generator: generator.exponential(mean_s, count), mean_s)


def constant(mean_s: float) -> TimeModel:
    return TimeModel(lambda count, generator: np.full(count, mean_s), mean_s)


def lognormal(mean_s: float, variation: float) -> TimeModel:
    """Make a model with log-normal times and a given coefficient of variation."""
    sigma = math.sqrt(math.log1p(variation**2))
    mu = math.log(mean_s) - sigma**2 / 2
    return TimeModel(lambda count, generator: generator.lognormal(mu, sigma, count), mean_s)


def with_server(
    model: TimeModel, max_lists: int, front_ms: float | None, batched_ms: float | None
) -> TimeModel:
    """Return a model with another time of the front end, or of lists in batches.

    The time of a batch grows by equal steps from one list to a full batch.

    Args:
        front_ms: milliseconds of the front end per list; None: unchanged.
        batched_ms: milliseconds per list in a batch of ``max_lists``; None: unchanged.
    """
    if front_ms is not None:
        model = replace(model, front_s=front_ms / 1e3)
    if batched_ms is not None:
        step_s = (max_lists * batched_ms / 1e3 - model.mean_s) / max(1, max_lists - 1)
        totals_s = {size: model.mean_s + (size - 1) * step_s for size in range(1, max_lists + 1)}
        efficiency = {size: total_s / size / model.mean_s for size, total_s in totals_s.items()}
        model = replace(model, efficiency=efficiency)
    return model


DISTRIBUTIONS: dict[str, tuple[Callable[..., TimeModel], int]] = {
    "exponential": (exponential, 1),
    "constant": (constant, 1),
    "lognormal": (lognormal, 2),
}
"""Distributions that can be named, and the number of parameters of each."""


def parse_service_times(text: str) -> TimeModel:
    """Parse ``exponential:MS``, ``constant:MS``, ``lognormal:MS:VARIATION``, or the name of a file that
    ``rescorer load --service-times`` wrote.

    Raises:
        ConfigError: the text is none of these.
        FormatError: the file has another format.
    """
    kind, *numbers = text.split(":")
    if kind not in DISTRIBUTIONS:
        return measured(read_service_times(Path(text)))
    make, n_numbers = DISTRIBUTIONS[kind]
    try:
        mean_ms, *rest = map(float, numbers)
    except ValueError:
        mean_ms, rest = math.nan, []
    if len(numbers) != n_numbers or not all(0 < number < math.inf for number in (mean_ms, *rest)):
        raise ConfigError(
            f"{text!r}: expected exponential:MS, constant:MS or lognormal:MS:VARIATION with numbers above 0, "
            "or a file of `rescorer load --service-times`"
        )
    return make(mean_ms / 1e3, *rest)


class Served(NamedTuple):
    """Times of the lists that workers took."""

    start_s: np.ndarray
    """(N,) times at which scoring began."""
    queue_s: np.ndarray
    """(N,) times in the queue before scoring, as in the metric ``rescorer_queue_seconds``."""
    response_s: np.ndarray
    """(N,) times from arrival until the answer is ready."""


class Replica:
    """A server in simulated time, which is advanced step by step.

    Args:
        workers: number of workers.
        max_lists: largest batch, in lists.
        start_s: time from which the server is ready.
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
        """Let lists arrive; return the lists that workers take before ``until_s``.

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
        """Return when the front end finishes each list, by Lindley's recursion in closed form."""
        front_s = self._times.front_s
        if not front_s or not len(arrivals):
            return arrivals
        work = front_s * np.arange(1, len(arrivals) + 1)
        begin = np.maximum.accumulate(np.maximum(arrivals - (work - front_s), self._front_free_s))
        done = begin + work
        self._front_free_s = float(done[-1])
        return done

    def _take_batches(self, ready: list[float], until_s: float) -> tuple[list[float], list[float]]:
        """Return begin and end of scoring for each list whose scoring begins before ``until_s``."""
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
        """Draw the times that lists would take if they were scored alone."""
        if len(self._draws) < count:
            self._draws = self._times.draw(max(N_DRAWN, count), self._generator).tolist()
        return sum(self._draws.pop() for _ in range(count))
