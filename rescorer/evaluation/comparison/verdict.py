"""Say in one sentence per system whether its language models gain more than a rule without them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rescorer.evaluation.comparison.significance import Significance, find_best_baseline
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.error_rate.report import to_percent
from rescorer.evaluation.statistics.bootstrap import Gain

MIN_P = 0.001
"""Smaller p-values are shown as less than this."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gain of a system over the best row that needs no language model."""

    system: str
    baseline: str
    gain: Gain

    @property
    def is_better(self) -> bool:
        """Whether the whole interval of the gain is above 0."""
        return self.gain.interval.low > 0

    @property
    def is_worse(self) -> bool:
        return self.gain.interval.high < 0

    def sentence(self) -> str:
        """The verdict in words."""
        points = format_gain(self.gain)
        if self.is_better:
            return f"{self.system!r} gains {points} over {self.baseline!r}, the best without language models"
        if self.is_worse:
            return f"{self.system!r} is worse than {self.baseline!r}, which needs no language model: {points}"
        return f"{self.system!r} adds nothing beyond chance to {self.baseline!r}: {points}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent, the interval null if the lists say nothing about it."""
        return {
            "system": self.system,
            "baseline": self.baseline,
            **gain_to_dict(self.gain),
            "verdict": "better" if self.is_better else "worse" if self.is_worse else "not beyond chance",
        }


def find_verdicts(comparison: Comparison, significance: Significance) -> list[Verdict]:
    """Compare every system that uses language models with the best row that needs none.

    If there are rows with held-out weights, only these are compared: others may be tuned on the same lists.
    """
    baseline = find_best_baseline(comparison.rows)
    if baseline is None:
        return []
    systems = [row for row in comparison.rows if row.is_rescored]
    chosen = [row for row in systems if row.held_out] or systems
    return [Verdict(row.name, baseline.name, significance.gain(row, baseline)) for row in chosen]


def format_gain(gain: Gain) -> str:
    """A gain in percentage points with half of its interval of 95 %.

    >>> from rescorer.evaluation.statistics.bootstrap import Interval
    >>> format_gain(Gain(-0.001, Interval(-0.007, 0.005), 0.7, 9))
    '−0.10 ± 0.60'
    """
    half_width = gain.interval.half_width
    spread = f" ± {100 * half_width:.2f}" if math.isfinite(half_width) else " (too few lists differ)"
    return format_signed(100 * gain.gain) + spread


def format_signed(points: float) -> str:
    """A number with two decimals and its sign; zero has none.

    >>> format_signed(1.234), format_signed(-0.5), format_signed(-0.001)
    ('+1.23', '−0.50', '0.00')
    """
    text = f"{points:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "−")


def format_p(p_value: float) -> str:
    """A p-value with three decimals, or its upper limit if it is smaller than these can show.

    >>> format_p(0.0424), format_p(0.0001)
    ('0.042', '<0.001')
    """
    return f"<{MIN_P}" if p_value < MIN_P else f"{p_value:.3f}"


def gain_to_dict(gain: Gain) -> dict[str, Any]:
    """Convert a gain to JSON data; rates in percent, the interval null if it is infinite."""
    low, high = gain.interval.low, gain.interval.high
    is_known = math.isfinite(low) and math.isfinite(high)
    return {
        "gain": to_percent(gain.gain),
        "gain_interval": [to_percent(low), to_percent(high)] if is_known else None,
        "p_value": float(f"{gain.p_value:.3g}"),
    }
