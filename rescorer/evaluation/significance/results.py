"""The rows of a comparison with their intervals and gains, as they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rescorer.evaluation.comparison.row import Row
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.figures import gain_to_dict, interval_to_list, round_p
from rescorer.evaluation.significance.gains import Significance
from rescorer.evaluation.statistics.bootstrap import Gain, Interval
from rescorer.evaluation.statistics.multiple_tests import correct_holm


@dataclass(frozen=True, slots=True)
class Result:
    """A row with what chance may have done to it."""

    row: Row
    interval: Interval
    """Interval of 95 % of the error rate."""
    gain: Gain | None
    """Over the first pass; None for the first pass itself, and for the oracle, which knows the references."""
    p_corrected: float = 1.0
    """P-value of the gain, corrected for the number of rows (Holm)."""

    @property
    def has_p_value(self) -> bool:
        """Whether the lists say how often chance alone would give such a gain."""
        return self.gain is not None and self.gain.interval.is_finite

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent, intervals null if the lists say nothing about them."""
        return {
            **self.row.report.to_dict(),
            "kind": self.row.kind,
            "generated": self.row.n_generated,
            "held_out": self.row.held_out,
            "wer_interval": interval_to_list(self.interval),
            **(gain_to_dict(self.gain) if self.gain else NO_GAIN),
            "p_value_corrected": round_p(self.p_corrected) if self.has_p_value else None,
        }


NO_GAIN = {"gain": None, "gain_interval": None, "p_value": None}


def judge_rows(comparison: Comparison, significance: Significance) -> list[Result]:
    """Compute the interval of each row, and its gain over the first pass if it is a system."""
    gains = [
        None if row.kind in ("first pass", "oracle") else significance.gain(row) for row in comparison.rows
    ]
    corrected = iter(correct_holm([gain.p_value for gain in gains if gain]).tolist())
    return [
        Result(row, significance.interval(row), gain, next(corrected) if gain else 1.0)
        for row, gain in zip(comparison.rows, gains, strict=True)
    ]
