"""Commands ``python -m tools.simulate_fleet``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from rescorer.cli import run
from rescorer.cli.measure import read_valid_lists
from rescorer.errors import ConfigError
from rescorer.terminal.list_options import FormatOption, ListInputOptions
from rescorer.terminal.program import PLAIN_HELP
from tools.simulate_fleet.autoscaling import TICK_S, AutoscalerSettings, Tick, simulate_autoscaling
from tools.simulate_fleet.fleet import FleetResult, ServerShape, find_replicas
from tools.simulate_fleet.replica import Pattern, parse_service_times, with_server

RATES_PER_S = "10,30,100,300,1000,3000,10000"
TimesArgument = Annotated[
    str,
    typer.Argument(
        metavar="TIMES",
        help="File of `rescorer load --service-times`, or exponential:MS, constant:MS or "
        "lognormal:MS:VARIATION.",
    ),
]
WorkersOption = Annotated[int, typer.Option(min=1, help="Workers per server.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Largest number of lists in a batch.")]
BurstOption = Annotated[
    float, typer.Option(min=1, help="Rate during bursts, relative to the rate between them.")
]
BurstSecondsOption = Annotated[float, typer.Option(min=0.001, help="Mean duration of a burst.")]
BetweenSecondsOption = Annotated[float, typer.Option(min=0.001, help="Mean time between bursts.")]
FrontOption = Annotated[
    float | None,
    typer.Option(min=0, help="Milliseconds of the front end per list; default: as measured, or 0."),
]
BatchedOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        help="Milliseconds of a worker per list in a full batch; default: as measured, or as alone.",
    ),
]
SeedOption = Annotated[int, typer.Option(help="Random seed.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="File for a picture (SVG).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object per row.")]

app = typer.Typer(**PLAIN_HELP, no_args_is_help=True)


@app.callback()
def simulate_fleet() -> None:
    """Simulate a fleet of servers."""


@app.command()
def replicas(
    service_times: TimesArgument,
    rates: Annotated[str, typer.Option(help="Lists per second, separated by commas.")] = RATES_PER_S,
    limit_ms: Annotated[float, typer.Option(min=0.1, help="Limit of the 99th percentile.")] = 200.0,
    workers: WorkersOption = 1,
    max_lists: BatchOption = 11,
    front_ms: FrontOption = None,
    batched_ms: BatchedOption = None,
    burst: BurstOption = 3.0,
    burst_s: BurstSecondsOption = 5.0,
    between_s: BetweenSecondsOption = 20.0,
    lists: Annotated[int, typer.Option(min=100, help="Number of lists to simulate.")] = 200_000,
    seed: SeedOption = 0,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print how many servers keep the 99th percentile of response times below a limit.

    Example: python -m tools.simulate_fleet replicas exponential:15 --rates 10,100 --lists 20000

    There is a row for a Poisson process and one for bursts at each rate; `load` is relative to the most that
    the servers can do.
    """
    times = with_server(parse_service_times(service_times), max_lists, front_ms, batched_ms)
    shape = ServerShape(workers, max_lists)
    patterns = {"Poisson": Pattern(), "bursts": Pattern(burst, burst_s, between_s)}
    rows: list[tuple[float, str, FleetResult]] = []
    if not as_json:
        typer.echo("| lists/s | arrivals | servers | load | p50 ms | p99 ms | mean queue ms |")
        typer.echo("|---|---|---|---|---|---|---|")
    for rate_per_s in parse_rates(rates):
        for name, pattern in patterns.items():
            result = find_replicas(times, shape, rate_per_s, pattern, limit_ms, lists, seed)
            if result is None:
                raise ConfigError(
                    f"--limit-ms {limit_ms:g}: a list alone takes longer at the 99th percentile"
                )
            rows.append((rate_per_s, name, result))
            typer.echo(format_row(rate_per_s, name, result, as_json=as_json))
    if plot:
        from tools.simulate_fleet.plots import plot_replicas  # imports matplotlib

        plot_replicas(rows, limit_ms, plot)


def parse_rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [math.nan]
    if not all(0 < rate < math.inf for rate in rates):
        raise ConfigError(f"--rates {text!r}: expected numbers above 0, separated by commas")
    return rates


def format_row(rate_per_s: float, name: str, result: FleetResult, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"rate_per_s": rate_per_s, "arrivals": name, **asdict(result)})
    times = f"{result.p50_ms:.0f} | {result.p99_ms:.0f} | {result.mean_queue_ms:.1f}"
    return f"| {rate_per_s:,.0f} | {name} | {result.replicas:,} | {result.load:.2f} | {times} |"


@app.command()
def autoscale(
    service_times: TimesArgument,
    targets_ms: Annotated[
        str, typer.Option(help="Targets of the mean queue time, separated by commas.")
    ] = "5,10,20,50,100",
    low: Annotated[float, typer.Option(min=0.01, help="Lists per second at night.")] = 50.0,
    high: Annotated[float, typer.Option(min=0.01, help="Lists per second at the height of the day.")] = 500.0,
    hours: Annotated[float, typer.Option(min=0.05, help="Length of a day.")] = 4.0,
    start_up_s: Annotated[float, typer.Option(min=0, help="Time until a new server answers.")] = 30.0,
    cool_down_s: Annotated[
        float, typer.Option(min=0, help="Time after which a server may be removed.")
    ] = 600.0,
    max_replicas: Annotated[int, typer.Option(min=1, help="Largest number of servers.")] = 100,
    limit_ms: Annotated[float, typer.Option(min=0.1, help="Limit of response times.")] = 200.0,
    workers: WorkersOption = 1,
    max_lists: BatchOption = 11,
    front_ms: FrontOption = None,
    batched_ms: BatchedOption = None,
    burst: BurstOption = 1.0,
    burst_s: BurstSecondsOption = 5.0,
    between_s: BetweenSecondsOption = 20.0,
    seed: SeedOption = 0,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the autoscaler of deploy/kubernetes follow a day, with several targets of the mean queue time.

    Example: python -m tools.simulate_fleet autoscale exponential:15 --hours 1 --high 200
    """
    times = with_server(parse_service_times(service_times), max_lists, front_ms, batched_ms)
    shape = ServerShape(workers, max_lists)
    runs: dict[float, list[Tick]] = {}

    def rate_at(time_s: np.ndarray) -> np.ndarray:
        wave = (1 - np.cos(2 * np.pi * time_s / (3600 * hours))) / 2
        return low + (high - low) * wave

    if not as_json:
        typer.echo("| target ms | p50 ms | p99 ms | within limit | server hours | most servers | load |")
        typer.echo("|---|---|---|---|---|---|---|")
    for target_ms in parse_rates(targets_ms):
        settings = AutoscalerSettings(
            target_ms / 1e3, max_replicas=max_replicas, cool_down_s=cool_down_s, start_up_s=start_up_s
        )
        pattern = Pattern(burst, burst_s, between_s)
        ticks = simulate_autoscaling(times, shape, settings, rate_at, pattern, 3600 * hours, seed)
        runs[target_ms] = ticks
        row = summarise_day(ticks, limit_ms, times.capacity_per_s(workers, max_lists))
        typer.echo(json.dumps({"target_ms": target_ms, **row}) if as_json else format_day(target_ms, row))
    if plot:
        from tools.simulate_fleet.plots import plot_days  # imports matplotlib

        plot_days(runs, plot)


def summarise_day(ticks: list[Tick], limit_ms: float, capacity_per_s: float) -> dict[str, float]:
    """Summarise the response times of all lists, and the cost of the servers."""
    response_ms = 1e3 * np.concatenate([tick.response_s for tick in ticks])
    server_hours = sum(tick.replicas for tick in ticks) * TICK_S / 3600
    return {
        "p50_ms": float(np.percentile(response_ms, 50)),
        "p99_ms": float(np.percentile(response_ms, 99)),
        "within_limit": float(np.mean(response_ms <= limit_ms)),
        "server_hours": server_hours,
        "most_servers": max(tick.replicas for tick in ticks),
        "load": len(response_ms) / (server_hours * 3600 * capacity_per_s),
    }


def format_day(target_ms: float, row: dict[str, float]) -> str:
    return (
        f"| {target_ms:g} | {row['p50_ms']:.0f} | {row['p99_ms']:.0f} | {100 * row['within_limit']:.2f} % "
        f"| {row['server_hours']:.1f} | {row['most_servers']} | {row['load']:.2f} |"
    )


@app.command()
def check(
    lists: Annotated[str, typer.Argument(help="N-best lists to send.")],
    bundle: Annotated[Path, typer.Option("--bundle", "-b", help="Folder of the bundle to serve.")],
    weights: Annotated[str, typer.Option(help="Name of a weights set of the bundle.")] = "default",
    seconds: Annotated[float, typer.Option(min=1, help="Duration of each stage.")] = 20.0,
    shares: Annotated[str, typer.Option(help="Loads relative to the peak, separated by commas.")] = "0.5,0.8",
    max_lists: BatchOption = 11,
    out: Annotated[Path | None, typer.Option("-o", "--output", help="File for the service times.")] = None,
    format_: FormatOption = None,
    seed: SeedOption = 0,
) -> None:
    """Compare the simulation with a real server under load.

    Example: python -m tools.simulate_fleet check demo/lists.jsonl.gz --bundle models/starter/1 --seconds 2
    """
    from tools.simulate_fleet.fleet import compare_with_server

    valid_lists = read_valid_lists(lists, ListInputOptions(format_=format_))
    typer.echo("| load | lists/s | p50 ms: measured | simulated | p99 ms: measured | simulated |")
    typer.echo("|---|---|---|---|---|---|")
    for row in compare_with_server(
        bundle, valid_lists, weights, seconds, parse_rates(shares), ServerShape(1, max_lists), seed, out
    ):
        typer.echo(
            f"| {row.name} | {row.rate_per_s:.1f} | {row.measured_p50_ms:.1f} | {row.simulated.p50_ms:.1f} "
            f"| {row.measured_p99_ms:.1f} | {row.simulated.p99_ms:.1f} |"
        )


if __name__ == "__main__":
    run(app, "python -m tools.simulate_fleet")
