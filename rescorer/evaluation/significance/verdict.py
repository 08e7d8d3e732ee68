"""Say in one sentence per system whether its language models gain more than a rule without them.

Where a run has several verdicts, each is judged by its p-value corrected for their number (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.figures import describe_p, describe_unknown, format_gain, gain_to_dict, round_p
from rescorer.evaluation.significance.gains import Significance, find_best_baseline
from rescorer.evaluation.statistics.bootstrap import LEVEL, Gain
from rescorer.evaluation.statistics.multiple_tests import correct_holm


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gain of a system over the best row that needs no language model."""

    system: str
    baseline: str
    gain: Gain
    unit: str = "list"
    """What was drawn: ``list`` or ``group``."""
    p_corrected: float | None = None
    """P-value of the gain, corrected for the number of verdicts; None for a verdict that stands alone."""
    n_verdicts: int = 1
    """Number of verdicts of the run."""

    @property
    def is_shown(self) -> bool:
        """Whether the difference, in either direction, is more than chance at a level of 5 %."""
        p_value = self.gain.p_value if self.p_corrected is None else self.p_corrected
        return self.gain.interval.is_finite and p_value < 1 - LEVEL

    @property
    def is_better(self) -> bool:
        """Whether the system is better beyond chance."""
        return self.is_shown and self.gain.gain > 0

    @property
    def is_worse(self) -> bool:
        return self.is_shown and self.gain.gain < 0

    def sentence(self) -> str:
        """The verdict in words."""
        if not self.gain.units_changed:
            return f"{self.system!r} makes the same errors as {self.baseline!r}"
        if not self.gain.interval.is_finite:
            return describe_unknown(repr(self.system), repr(self.baseline), self.gain, self.unit)
        points = format_gain(self.gain)
        if self.p_corrected is not None:
            points += f" ({describe_p(self.p_corrected)}, corrected for {self.n_verdicts} verdicts)"
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
            "p_value_corrected": round_p(self.gain.p_value if self.p_corrected is None else self.p_corrected)
            if self.gain.interval.is_finite
            else None,
            "sentence": self.sentence(),
            "verdict": "better" if self.is_better else "worse" if self.is_worse else "not beyond chance",
        }


def find_verdicts(comparison: Comparison, significance: Significance) -> list[Verdict]:
    """Compare every system that uses language models with the best row that needs none.

    The p-values are not corrected yet: see ``correct_verdicts``. If there are rows with held-out
    weights, only these are compared: others may be tuned on the same lists.
    """
    baseline = find_best_baseline(comparison.rows)
    if baseline is None:
        return []
    systems = [row for row in comparison.rows if row.is_rescored]
    chosen = [row for row in systems if row.held_out] or systems
    unit = significance.bootstrap.unit
    return [Verdict(row.name, baseline.name, significance.gain(row, baseline), unit) for row in chosen]


def correct_verdicts(verdicts: Sequence[Sequence[Verdict]]) -> list[list[Verdict]]:
    """Correct the verdicts of a run, those of each file together, for their number (Holm).

    A verdict that stands alone stays as it is.
    """
    n_verdicts = sum(map(len, verdicts))
    if n_verdicts < 2:
        return [list(of_file) for of_file in verdicts]
    corrected = iter(correct_holm([verdict.gain.p_value for part in verdicts for verdict in part]).tolist())
    return [
        [replace(verdict, p_corrected=next(corrected), n_verdicts=n_verdicts) for verdict in of_file]
        for of_file in verdicts
    ]
