"""A fleet of constant size: response times, and the smallest fleet that keeps them below a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tools.simulate_fleet.arrivals import Pattern, draw_arrivals
from tools.simulate_fleet.replica import Replica
from tools.simulate_fleet.service_times import TimeModel

CALLERS = 16
"""Number of clients, each of which distributes its calls over the replicas in turn."""
MIN_CYCLES = 20
"""Number of bursts that are simulated at least. Where that makes more lists than asked for, all arrivals are
drawn, but only some of the replicas are simulated: given its arrivals, none depends on another."""
WARM_UP_SHARE = 0.1
"""Share of the lists at the beginning that is not counted, because all servers were idle."""


@dataclass(frozen=True, slots=True)
class ServerShape:
    """Workers of a server, and the largest batch."""

    workers: int = 1
    max_lists: int = 11
    """``max_batch_tokens`` divided by the words of a list."""


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Times of a simulated fleet, in milliseconds."""

    replicas: int
    p50_ms: float
    p99_ms: float
    mean_queue_ms: float
    """Mean of ``rescorer_queue_seconds``."""
    load: float
    """Arrivals relative to the most that the fleet can do."""


def route(n_lists: int, replicas: int, generator: np.random.Generator) -> np.ndarray:
    """Choose a replica for each list as round robin does, in which every client begins somewhere else.

    Returns:
        (N,) numbers of replicas.
    """
    caller = generator.integers(CALLERS, size=n_lists)
    chosen = np.empty(n_lists, dtype=np.int64)
    for number, start in enumerate(generator.integers(replicas, size=CALLERS)):
        own = np.flatnonzero(caller == number)
        chosen[own] = (start + np.arange(len(own))) % replicas
    return chosen


def draw_fleet_arrivals(rate_per_s: float, pattern: Pattern, n_lists: int, seed: int) -> np.ndarray:
    """Draw the arrivals of about ``n_lists`` lists, or of ``MIN_CYCLES`` bursts if these are more."""
    duration_s = n_lists / rate_per_s
    if pattern.factor > 1:
        duration_s = max(duration_s, MIN_CYCLES * (pattern.burst_s + pattern.between_s))
    return draw_arrivals(rate_per_s, duration_s, pattern, np.random.default_rng(seed))


def simulate_fleet(
    times: TimeModel, shape: ServerShape, replicas: int, arrivals: np.ndarray, n_lists: int, seed: int = 0
) -> FleetResult:
    """Simulate a fleet of constant size.

    Args:
        arrivals: (N,) sorted times in seconds.
        n_lists: number of lists after which no further replica is simulated.
    """
    generator = np.random.default_rng(seed)
    chosen = route(len(arrivals), replicas, generator)
    queue_s, response_s = [np.empty(0)], [np.empty(0)]
    n_simulated = 0
    for number in range(replicas):
        own = arrivals[chosen == number]
        served = Replica(times, shape.workers, shape.max_lists, generator).advance(own, math.inf)
        is_counted = own >= WARM_UP_SHARE * arrivals[-1]
        queue_s.append(served.queue_s[is_counted])
        response_s.append(served.response_s[is_counted])
        n_simulated += len(own)
        if n_simulated >= n_lists:
            break
    response_ms = 1e3 * np.concatenate(response_s)
    capacity_per_s = replicas * times.capacity_per_s(shape.workers, shape.max_lists)
    return FleetResult(
        replicas,
        float(np.percentile(response_ms, 50)),
        float(np.percentile(response_ms, 99)),
        1e3 * float(np.concatenate(queue_s).mean()),
        len(arrivals) / float(arrivals[-1]) / capacity_per_s,
    )


def find_replicas(
    times: TimeModel,
    shape: ServerShape,
    rate_per_s: float,
    pattern: Pattern,
    limit_ms: float,
    n_lists: int,
    seed: int = 0,
) -> FleetResult | None:
    """Find the smallest fleet whose 99th percentile is within the limit, by bisection; None if there is none,
    because a list alone takes longer."""

    arrivals = draw_fleet_arrivals(rate_per_s, pattern, n_lists, seed)

    def simulate(replicas: int) -> FleetResult:
        return simulate_fleet(times, shape, replicas, arrivals, n_lists, seed + 1)

    low = math.floor(rate_per_s / times.capacity_per_s(shape.workers, shape.max_lists))  # too few
    high = max(1, low)
    while (best := simulate(high)).p99_ms > limit_ms:
        low, high = high, 2 * high
        if best.load < 0.01:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        result = simulate(middle)
        if result.p99_ms <= limit_ms:
            high, best = middle, result
        else:
            low = middle
    return best
