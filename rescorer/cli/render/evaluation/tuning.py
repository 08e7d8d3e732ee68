"""Tables and lines about tuned weights: values, spread over folds, and what cannot be told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rescorer.cli.render.tables import FoldingTable
from rescorer.evaluation.statistics.bootstrap import Interval
from rescorer.evaluation.tuning.report import TuningReport


def make_weight_table(report: TuningReport) -> FoldingTable:
    """Make a table with one row per weight."""
    table = FoldingTable("weight", "start", "tuned", "mean of folds", "± over folds", "note")
    for weight in report.weights:
        numbers = (weight.start, weight.tuned, weight.fold_mean, weight.fold_spread)
        table.add_row(weight.name, *(f"{number:.4g}" for number in numbers), weight.note or "-")
    return table


def describe_report(report: TuningReport) -> Iterator[str]:
    """Yield lines about the judgement, the methods and the flat directions."""
    judgement = report.judgement
    gain = judgement.gain
    p_value = f", p = {gain.p_value:.2g}" if gain.interval.is_finite else ""
    yield (
        f"held out: {_percent(judgement.rate)} %{_span(judgement.interval)}, "
        f"start {_percent(judgement.start_rate)} %; gain {_percent(gain.gain)} points"
        f"{_span(gain.interval)}{p_value}"
    )
    yield from judgement.caveats()
    yield f"cross-validation: {report.folds}"
    in_folds = ", ".join(
        f"{method} ({count}×)" for method, count in Counter(map(str, report.fold_methods)).items()
    )
    yield f"minimised: {report.method}; in the folds: {in_folds}"
    alone = [direction.describe() for direction in report.flat if direction.low != direction.high]
    if alone:
        yield f"equal within the noise: {'; '.join(alone)}"
    if report.flattest and report.flattest.low != report.flattest.high:
        yield f"equal within the noise: {report.flattest.describe()}"


def _span(interval: Interval) -> str:
    """The ends of an interval in parentheses; nothing if the lists say nothing about them."""
    return f" ({_percent(interval.low)} to {_percent(interval.high)})" if interval.is_finite else ""


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f}"
