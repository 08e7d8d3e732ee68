"""Measure how often intervals of 95 % contain the truth: ``python -m tools.simulations.coverage``.

Prints one table for error rates and one for gains, in Markdown: per method, the share of simulated sets whose
interval contains the truth, and the shares in which the whole interval is above or below it. The percentile
and BCa intervals of the same draws (Efron and Tibshirani, An Introduction to the Bootstrap, 14.3) are there
for comparison; the last method is the one that the commands use.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import typer
from scipy import stats

from rescorer.cli.output import PLAIN_HELP
from rescorer.evaluation.statistics.bootstrap import LEVEL, Bootstrap, Interval, bootstrap, sum_by_group
from tools.simulations.errors import ErrorSample, Scenario, simulate_errors

SCENARIOS = (
    Scenario("143 lists", 143),
    Scenario("1,000 lists", 1000),
    Scenario("143 lists, WER 30 %", 143, rate=0.30),
    Scenario("143 lists, WER 3 %", 143, rate=0.03),
    Scenario("143 lists, no gain", 143, fixed=0.10, broken=0.10),
    Scenario("1,000 lists, few changes", 1000, fixed=0.01, broken=0.01),
    Scenario("30 groups, 1,000 lists", 1000, n_groups=30),
    Scenario("50 groups, 1,000 lists", 1000, n_groups=50),
    Scenario("6 groups, 143 lists", 143, n_groups=6),
    Scenario("7 groups, 143 lists", 143, n_groups=7),
    Scenario("10 groups, 143 lists", 143, n_groups=10),
    Scenario("15 groups, 143 lists", 143, n_groups=15),
    Scenario("20 groups, 143 lists", 143, n_groups=20),
    Scenario("10 lists", 10),
    Scenario("20 lists", 20),
)
TAIL = (1 - LEVEL) / 2
METHODS = ("percentile", "BCa", "rescorer")


@dataclass(slots=True)
class Tally:
    """How often intervals contained the truth."""

    covered: int = 0
    above: int = 0
    """Intervals that lie wholly above the truth: for a gain, an improvement that is not there."""
    below: int = 0

    def add(self, interval: Interval, truth: float) -> None:
        self.covered += interval.low <= truth <= interval.high
        self.above += interval.low > truth
        self.below += interval.high < truth

    def cells(self) -> tuple[str, ...]:
        """Shares in percent."""
        n = self.covered + self.above + self.below
        return tuple(f"{100 * count / n:.1f}" for count in (self.covered, self.above, self.below))


def percentile_interval(drawn: np.ndarray, shares: tuple[float, float] = (TAIL, 1 - TAIL)) -> Interval:
    """Interval between two quantiles of the draws."""
    low, high = np.quantile(drawn, shares)
    return Interval(float(low), float(high))


def bca_interval(drawn: np.ndarray, observed: float, left_out: np.ndarray) -> Interval:
    """Percentiles corrected for bias and skewness.

    Args:
        left_out: (U,) values without each unit: the jackknife.
    """
    below = np.mean(drawn < observed) + 0.5 * np.mean(drawn == observed)
    bias = stats.norm.ppf(np.clip(below, 1 / len(drawn), 1 - 1 / len(drawn)))
    influence = left_out.mean() - left_out
    spread = np.sum(influence**2) ** 1.5
    skewness = np.sum(influence**3) / (6 * spread) if spread else 0.0
    shifted = bias + stats.norm.ppf([TAIL, 1 - TAIL])
    low, high = stats.norm.cdf(bias + shifted / (1 - skewness * shifted))
    return percentile_interval(drawn, (low, high))


def leave_out_rates(sample: ErrorSample) -> np.ndarray:
    """Rates of both systems without each list or group: (2, U)."""
    columns = np.concatenate([sample.errors, sample.words[None]]).astype(np.float64)
    if sample.groups is not None:
        columns = sum_by_group(columns, sample.groups.tolist())
    rest = columns.sum(axis=1, keepdims=True) - columns
    return np.asarray(rest[:2] / rest[2])


def find_intervals(sample: ErrorSample, result: Bootstrap) -> dict[tuple[str, str], Interval]:
    """Intervals of the first system's rate and of the gain, by quantity and method."""
    left_out = leave_out_rates(sample)
    rates, drawn = result.rates, result.drawn_rates
    gains = drawn[:, 0] - drawn[:, 1]
    return {
        ("rate", "percentile"): percentile_interval(drawn[:, 0]),
        ("rate", "BCa"): bca_interval(drawn[:, 0], rates[0], left_out[0]),
        ("rate", "rescorer"): result.interval(0),
        ("gain", "percentile"): percentile_interval(gains),
        ("gain", "BCa"): bca_interval(gains, rates[0] - rates[1], left_out[0] - left_out[1]),
        ("gain", "rescorer"): result.gain(0, 1).interval,
    }


def measure(scenario: Scenario, samples: int, draws: int, seed: int) -> dict[tuple[str, str], Tally]:
    """Simulate a scenario many times, and count the intervals that contain the truth."""
    generator = np.random.default_rng(seed)
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    for _ in range(samples):
        sample = simulate_errors(scenario, generator)
        groups = None if sample.groups is None else sample.groups.tolist()
        draw_seed = int(generator.integers(1 << 32))
        result = bootstrap(sample.errors, sample.words, groups, draws, draw_seed)
        for key, interval in find_intervals(sample, result).items():
            tallies[key].add(interval, scenario.rate if key[0] == "rate" else scenario.gain)
    return tallies


def main(
    samples: Annotated[int, typer.Option(min=1, help="Number of simulated sets per scenario.")] = 2000,
    draws: Annotated[int, typer.Option(min=2, help="Number of bootstrap draws per set.")] = 2000,
    lists: Annotated[int, typer.Option(min=0, help="Lists per set; 0 for those of each scenario.")] = 0,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Simulate evaluations with known error rates, and measure how often intervals contain them."""
    tables: dict[str, list[str]] = {"rate": [], "gain": []}
    for scenario in SCENARIOS:
        chosen = replace(scenario, n_lists=lists) if lists else scenario
        tallies = measure(chosen, samples, draws, seed)
        for quantity, lines in tables.items():
            cells = (" / ".join(tallies[quantity, method].cells()) for method in METHODS)
            lines.append(f"| {scenario.name} | {' | '.join(cells)} |")
            typer.echo(lines[-1] + f"  ({quantity})", err=True)
    for quantity, lines in tables.items():
        typer.echo(f"| {quantity}: covered / above / below, % | {' | '.join(METHODS)} |\n|---|---|---|---|")
        typer.echo("\n".join(lines) + "\n")


if __name__ == "__main__":
    app = typer.Typer(**PLAIN_HELP)
    app.command()(main)
    app()
