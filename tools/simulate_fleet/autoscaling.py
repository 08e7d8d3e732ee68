"""Kubernetes' horizontal autoscaler in simulated time, with the settings of deploy/kubernetes.

The autoscaler looks at the mean of ``rescorer_queue_seconds`` over two minutes, averaged over the replicas.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tools.simulate_fleet.fleet import ServerShape, route
from tools.simulate_fleet.replica import Pattern, Replica, Served, TimeModel, draw_arrivals

TICK_S = 15.0
"""Interval at which the autoscaler decides (Kubernetes' default)."""
TOLERANCE = 0.1
"""Relative deviation from the target within which the size is kept (Kubernetes' default)."""


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """The settings in deploy/kubernetes/autoscaling.yaml."""

    target_queue_s: float = 0.01
    min_replicas: int = 2
    max_replicas: int = 10
    window_s: float = 120.0
    """Time over which the queue time is averaged."""
    up_factor: float = 2.0
    """Largest factor by which the fleet grows per ``up_period_s``."""
    up_period_s: float = 60.0
    down_period_s: float = 120.0
    """Time between the removals of single replicas."""
    cool_down_s: float = 600.0
    """Time over which the largest desired number of replicas counts, before any replica is removed."""
    start_up_s: float = 30.0
    """Time from a decision until the new replica answers."""


@dataclass(slots=True)
class Autoscaler:
    """Decides the number of replicas from queue times."""

    settings: AutoscalerSettings
    _wishes: deque[tuple[float, int]] = field(default_factory=deque)
    _sizes: deque[tuple[float, int]] = field(default_factory=deque)
    _removed_s: float = -math.inf

    def decide(self, now_s: float, replicas: int, queue_s: float) -> int:
        """Return the number of replicas from now on.

        Args:
            replicas: number of replicas, including those that are starting.
            queue_s: mean queue time of a list.
        """
        settings = self.settings
        ratio = queue_s / settings.target_queue_s
        wish = replicas if abs(ratio - 1) <= TOLERANCE else math.ceil(replicas * ratio)
        wish = min(max(wish, settings.min_replicas), settings.max_replicas)
        _remember(self._wishes, now_s, wish, settings.cool_down_s)
        _remember(self._sizes, now_s, replicas, settings.up_period_s)
        if wish > replicas:
            return min(wish, math.ceil(settings.up_factor * self._sizes[0][1]))
        may_remove = now_s - self._removed_s >= settings.down_period_s
        if max(wish for _, wish in self._wishes) < replicas and may_remove:
            self._removed_s = now_s
            return replicas - 1
        return replicas


def _remember(values: deque[tuple[float, int]], now_s: float, value: int, duration_s: float) -> None:
    values.append((now_s, value))
    while values[0][0] < now_s - duration_s:
        values.popleft()


@dataclass(frozen=True, slots=True)
class Tick:
    """What happened in an interval between two decisions."""

    time_s: float
    rate_per_s: float
    replicas: int
    queue_s: float
    """Mean queue time as the autoscaler sees it, averaged over the window and the replicas."""
    response_s: np.ndarray
    """(N,) response times of the lists that workers took."""


class ElasticFleet:
    """Replicas that come and go. Calls are distributed in turn over the replicas that are ready."""

    def __init__(
        self, times: TimeModel, shape: ServerShape, generator: np.random.Generator, window_s: float
    ) -> None:
        self._times, self._shape, self._generator = times, shape, generator
        self._window_ticks = max(1, round(window_s / TICK_S))
        self._members: list[tuple[float, Replica, deque[tuple[float, int]]]] = []
        self._draining: list[Replica] = []

    def __len__(self) -> int:
        return len(self._members)

    def resize(self, replicas: int, ready_s: float) -> None:
        """Start or stop replicas. New ones are ready at ``ready_s``; stopped ones finish their lists."""
        while len(self._members) > replicas:
            self._draining.append(self._members.pop()[1])
        while len(self._members) < replicas:
            shape = self._shape
            replica = Replica(self._times, shape.workers, shape.max_lists, self._generator, ready_s)
            self._members.append((ready_s, replica, deque(maxlen=self._window_ticks)))

    def advance(self, arrivals: np.ndarray, now_s: float, until_s: float) -> tuple[float, np.ndarray]:
        """Let lists arrive; return the mean queue time of the window, and the response times."""
        ready = [member for member in self._members if member[0] <= now_s]
        chosen = route(len(arrivals), len(ready), self._generator)
        responses = [replica.advance(np.empty(0), until_s).response_s for replica in self._draining]
        means = []
        for number, (_, replica, window) in enumerate(ready):
            served = replica.advance(arrivals[chosen == number], until_s)
            responses.append(served.response_s)
            window.append(_sum_queue(served))
            count = sum(n for _, n in window)
            means.append(sum(seconds for seconds, _ in window) / count if count else 0.0)
        self._draining = [replica for replica in self._draining if replica.waiting]
        return float(np.mean(means)), np.concatenate(responses)


def _sum_queue(served: Served) -> tuple[float, int]:
    return float(served.queue_s.sum()), len(served.queue_s)


def simulate_autoscaling(
    times: TimeModel,
    shape: ServerShape,
    settings: AutoscalerSettings,
    rate_at: Callable[[np.ndarray], np.ndarray],
    pattern: Pattern,
    duration_s: float,
    seed: int = 0,
) -> list[Tick]:
    """Simulate a fleet whose size follows the load.

    Args:
        rate_at: function that returns the mean lists per second at given times in seconds.
    """
    generator = np.random.default_rng(seed)
    starts_s = np.arange(0.0, duration_s, TICK_S)
    rates = rate_at(starts_s)
    arrivals = draw_arrivals(float(rates.max()), duration_s, pattern, generator)
    is_kept = generator.random(len(arrivals)) * rates.max() < rate_at(arrivals)
    bounds = np.searchsorted(arrivals[is_kept], starts_s[1:])
    fleet = ElasticFleet(times, shape, generator, settings.window_s)
    fleet.resize(settings.min_replicas, 0.0)
    autoscaler, ticks = Autoscaler(settings), []
    for now_s, rate_per_s, arrived in zip(
        starts_s.tolist(), rates.tolist(), np.split(arrivals[is_kept], bounds), strict=True
    ):
        queue_s, response_s = fleet.advance(arrived, now_s, now_s + TICK_S)
        ticks.append(Tick(now_s, rate_per_s, len(fleet), queue_s, response_s))
        wanted = autoscaler.decide(now_s + TICK_S, len(fleet), queue_s)
        fleet.resize(wanted, now_s + TICK_S + settings.start_up_s)
    return ticks
