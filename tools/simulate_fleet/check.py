"""Compare simulated response times with those of a real server under load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rescorer.load.server import run_server
from rescorer.load.service_times import encode_calls, measure_service_times, write_service_times
from rescorer.load.stages import LoadPlan, StageResult, encode_requests, measure_server
from rescorer.types import NBestList
from tools.simulate_fleet.arrivals import Pattern
from tools.simulate_fleet.fleet import FleetResult, ServerShape, draw_fleet_arrivals, simulate_fleet
from tools.simulate_fleet.service_times import measured

SIMULATED_LISTS = 50_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """A load, and response times under it."""

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
    """Start a server, measure its peak, and yield a comparison for each share of it.

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
