"""The rows of a comparison with their intervals and gains, as they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rescorer.evaluation.comparison.row import Row
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.figures import gain_to_dict, interval_to_list
from rescorer.evaluation.significance.gains import Significance
from rescorer.evaluation.statistics.bootstrap import Gain, Interval


@dataclass(frozen=True, slots=True)
class Result:
    """A row with what chance may have done to it."""

    row: Row
    interval: Interval
    """Interval of 95 % of the error rate."""
    gain: Gain | None
    """Over the first pass; None for the first pass itself, and for the oracle, which knows the references."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent, intervals null if the lists say nothing about them."""
        return {
            **self.row.report.to_dict(),
            "kind": self.row.kind,
            "held_out": self.row.held_out,
            "wer_interval": interval_to_list(self.interval),
            **(gain_to_dict(self.gain) if self.gain else NO_GAIN),
        }


NO_GAIN = {"gain": None, "gain_interval": None, "p_value": None}


def judge_rows(comparison: Comparison, significance: Significance) -> list[Result]:
    """Compute the interval of each row, and its gain over the first pass if it is a system."""
    return [
        Result(
            row,
            significance.interval(row),
            None if row.kind in ("first pass", "oracle") else significance.gain(row),
        )
        for row in comparison.rows
    ]
