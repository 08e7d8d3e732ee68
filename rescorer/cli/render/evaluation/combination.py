"""Table and sentences about a combination of recognisers."""

from __future__ import annotations

from collections.abc import Iterator

from rescorer.cli.render.tables import FoldingTable
from rescorer.evaluation.combination.report import CombinationReport
from rescorer.evaluation.figures import (
    describe_p,
    describe_unknown,
    format_gain,
    format_interval,
    format_percent,
)
from rescorer.text import rate_name, unit_noun


def render_combination(report: CombinationReport) -> FoldingTable:
    """Render one row per system and vote."""
    rate, noun = rate_name(report.counted), unit_noun(report.counted)
    table = FoldingTable("system", f"{rate} %", "interval", "errors", f"{noun}s")
    for name, row in report.rows.items():
        counts = (str(row.errors), str(row.reference_words))
        table.add_row(name, format_percent(row.rate), format_interval(row.interval), *counts)
    return table


def summarise(report: CombinationReport) -> Iterator[str]:
    """Yield the verdict and, if they were tuned, the options for other utterances."""
    gain = report.gain
    name = report.best_system
    margin = f"{format_gain(gain)} points, {describe_p(gain.p_value)}"
    if not gain.units_changed:
        yield f"the combination makes the same errors as {name}, the best system"
    elif not gain.interval.is_finite:
        yield describe_unknown("the combination", f"{name}, the best system", gain, report.unit)
    elif gain.lower_bound > 0:
        yield f"the combination is better than {name}, the best system: {margin}"
    elif gain.interval.high < 0:
        yield f"the combination is worse than {name}, the best system: {margin}"
    else:
        yield f"the combination is not better than {name}, the best system, beyond chance: {margin}"
    if report.warning:
        yield report.warning
    if report.tuned is not None:
        weights = ",".join(f"{weight:.3g}" for weight in report.tuned.weights)
        temperatures = ",".join(f"{temperature:g}" for temperature in report.tuned.temperatures)
        yield (
            f"tuned on all {report.utterances:,} utterances: --system-weights {weights} --temperatures "
            f"{temperatures} --null-weight {report.tuned.null_weight:g}"
        )
