"""Draw the results of simulations as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tools.simulate_fleet.autoscaling import Tick
from tools.simulate_fleet.fleet import FleetResult

SMOOTHING_TICKS = 4
"""Number of intervals over which percentiles of a day are taken."""


def plot_replicas(rows: Sequence[tuple[float, str, FleetResult]], limit_ms: float, path: Path) -> None:
    """Draw the number of servers over the rate, a line per pattern of arrivals."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, marker in zip(dict.fromkeys(name for _, name, _ in rows), "os^D", strict=False):
        own = [(rate, result.replicas) for rate, pattern, result in rows if pattern == name]
        axes.loglog(*zip(*own, strict=True), marker=marker, label=name)
    rates = np.array(sorted({rate for rate, _, _ in rows}))
    per_server = np.median([rate / result.replicas / result.load for rate, _, result in rows])
    axes.loglog(
        rates, np.maximum(1, rates / per_server), ":", color="grey", label="as many as the work needs"
    )
    axes.set(xlabel="lists per second", ylabel=f"servers for p99 ≤ {limit_ms:g} ms")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def plot_days(runs: Mapping[float, Sequence[Tick]], path: Path) -> None:
    """Draw the rate, the number of servers and the 99th percentile over a day, a line per target."""
    figure = Figure(figsize=(7, 7), layout="constrained")
    rate_axes, size_axes, time_axes = figure.subplots(3, 1, sharex=True)
    first = next(iter(runs.values()))
    rate_axes.plot([tick.time_s / 3600 for tick in first], [tick.rate_per_s for tick in first], color="grey")
    for target_ms, ticks in runs.items():
        label = f"target {target_ms:g} ms"
        size_axes.plot([tick.time_s / 3600 for tick in ticks], [tick.replicas for tick in ticks], label=label)
        groups = [ticks[i : i + SMOOTHING_TICKS] for i in range(0, len(ticks), SMOOTHING_TICKS)]
        p99_ms = [np.percentile(np.concatenate([t.response_s for t in group]), 99) * 1e3 for group in groups]
        time_axes.semilogy([group[0].time_s / 3600 for group in groups], p99_ms, label=label, linewidth=1)
    rate_axes.set(ylabel="lists per second")
    size_axes.set(ylabel="servers")
    time_axes.set(xlabel="hours", ylabel="p99, ms, by the minute")
    size_axes.legend(fontsize="small")
    for axes in (rate_axes, size_axes, time_axes):
        axes.grid(alpha=0.3)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, the same bytes each time."""
    with rc_context({"svg.hashsalt": "rescorer"}):
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
