"""The rows of a comparison with their intervals and gains, as they are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rescorer.evaluation.comparison.row import Row
from rescorer.evaluation.comparison.significance import Significance
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.comparison.verdict import gain_to_dict
from rescorer.evaluation.error_rate.report import to_percent
from rescorer.evaluation.statistics.bootstrap import Gain, Interval


@dataclass(frozen=True, slots=True)
class Result:
    """A row with what chance may have done to it."""

    row: Row
    interval: Interval
    """Interval of 95 % of the error rate."""
    gain: Gain | None
    """Over the first pass; None for the first pass itself."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent, intervals null if the lists say nothing about them."""
        low, high = self.interval.low, self.interval.high
        return {
            **self.row.report.to_dict(),
            "kind": self.row.kind,
            "held_out": self.row.held_out,
            "wer_interval": [to_percent(low), to_percent(high)] if math.isfinite(high) else None,
            **(gain_to_dict(self.gain) if self.gain else NO_GAIN),
        }


NO_GAIN = {"gain": None, "gain_interval": None, "p_value": None}


def judge_rows(comparison: Comparison, significance: Significance) -> list[Result]:
    """Compute the interval of each row, and its gain over the first pass."""
    return [
        Result(
            row,
            significance.interval(row),
            None if row.kind == "first pass" else significance.gain(row),
        )
        for row in comparison.rows
    ]
