"""Say in one sentence per system whether its language models gain more than a rule without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.figures import explain_unknown, format_gain, gain_to_dict
from rescorer.evaluation.significance.gains import Significance, find_best_baseline
from rescorer.evaluation.statistics.bootstrap import Gain


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gain of a system over the best row that needs no language model."""

    system: str
    baseline: str
    gain: Gain
    unit: str = "list"
    """What was drawn: ``list`` or ``group``."""

    @property
    def is_better(self) -> bool:
        """Whether the whole interval of the gain is above 0."""
        return self.gain.interval.low > 0

    @property
    def is_worse(self) -> bool:
        return self.gain.interval.high < 0

    def sentence(self) -> str:
        """The verdict in words."""
        if not self.gain.units_changed:
            return f"{self.system!r} makes the same errors as {self.baseline!r}"
        points = format_gain(self.gain)
        if not self.gain.interval.is_finite:
            reason = explain_unknown(self.gain, self.unit)
            return f"{self.system!r} against {self.baseline!r}: {points}; {reason}"
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
    unit = significance.bootstrap.unit
    return [Verdict(row.name, baseline.name, significance.gain(row, baseline), unit) for row in chosen]
