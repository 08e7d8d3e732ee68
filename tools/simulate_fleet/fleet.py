"""A fleet of constant size: its response times, and the smallest fleet that keeps them below a limit.

Simulated response times can also be compared with those of a real server under load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.bench.load import (
    LoadPlan,
    StageResult,
    encode_calls,
    encode_requests,
    measure_server,
    measure_service_times,
    run_server,
    write_service_times,
)
from rescorer.types import NBestList
from tools.simulate_fleet.replica import Pattern, Replica, TimeModel, draw_arrivals, measured

CALLERS = 16
"""Number of clients, each of which distributes its calls over the replicas in turn."""
MIN_CYCLES = 20
"""Minimum number of bursts that are simulated.

If these have more lists than asked for, all arrivals are drawn, but only some of the replicas are simulated,
because a replica with given arrivals does not depend on the others."""
WARM_UP_SHARE = 0.1
"""Share of the lists that is not counted at the beginning, because all servers were idle."""


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
    """Rate of arrivals relative to the capacity of the fleet."""


def route(n_lists: int, replicas: int, generator: np.random.Generator) -> np.ndarray:
    """Choose a replica for each list by round robin. Every client begins with another replica.

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
    """Find the smallest fleet whose 99th percentile is within the limit, by bisection.

    None if no fleet is fast enough, because a list alone takes longer."""

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


SIMULATED_LISTS = 50_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """A load, and simulated and measured response times under this load."""

    name: str
    rate_per_s: float
    measured_p50_ms: float
    measured_p99_ms: float
    simulated: FleetResult


def compare_with_server(
    bundle: Path,
    lists: Sequence[NBestList],
    weights: str,
    seconds: float,
    shares: Sequence[float],
    shape: ServerShape,
    seed: int = 0,
    times_file: Path | None = None,
) -> Iterator[Comparison]:
    """Start a server, measure its peak load, and yield a comparison for each given share of the peak.

    Service times are measured before each comparison, since the machine may have become busier.
    """
    plan, messages = LoadPlan(stage_s=seconds), encode_requests(lists, weights, 1)
    calls = encode_calls(lists, weights)
    options = ("--bundle", str(bundle), "--workers", str(shape.workers), "--threads", "1")
    with run_server(options) as (target, pid):

        def measure(rate_per_s: float | None) -> StageResult:
            return measure_server("", target, pid, messages, rate_per_s, plan)

        measure(None)  # warm up
        peak_per_s = measure(None).lists_per_s
        for share in shares:
            rate_per_s = share * peak_per_s
            service_times = measure_service_times(target, calls, seconds)
            if times_file:
                write_service_times(service_times, times_file)
            stage = measure(rate_per_s)
            arrivals = draw_fleet_arrivals(rate_per_s, Pattern(), SIMULATED_LISTS, seed)
            model = measured(service_times)
            simulated = simulate_fleet(model, shape, 1, arrivals, SIMULATED_LISTS, seed + 1)
            yield Comparison(f"{share:g}", rate_per_s, stage.p50_ms or 0.0, stage.p99_ms or 0.0, simulated)
