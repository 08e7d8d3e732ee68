"""Error rates of a bundle and of the adapted one on the same lists, by the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rescorer.errors import FormatError, InvalidList
from rescorer.evaluation.comparison.baselines import FIRST_PASS
from rescorer.evaluation.comparison.rankings import order_by_decision, order_by_first_pass
from rescorer.evaluation.comparison.row import build_row
from rescorer.evaluation.comparison.scored_lists import score_lists
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.figures import gain_to_dict
from rescorer.evaluation.significance.gains import Significance
from rescorer.evaluation.significance.results import Result, judge_rows
from rescorer.evaluation.statistics.bootstrap import Gain
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList, Weights
from rescorer_training.adaptation.report import AFTER, BEFORE


@dataclass(frozen=True)
class ListComparison:
    """What the first pass, the bundle and the adapted one choose."""

    results: Sequence[Result]
    """The first pass, before and after, with intervals."""
    gain: Gain
    """By how much the adapted bundle has a lower error rate than the bundle."""
    unit: str
    """What the bootstrap drew: ``list`` or ``group``."""
    n_units: int
    n_lists: int
    rejected: Sequence[InvalidList]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent."""
        return {
            "systems": [{"name": result.row.name, **result.to_dict()} for result in self.results],
            "after_over_before": gain_to_dict(self.gain),
            "lists": self.n_lists,
            "drawn": self.unit,
            "units": self.n_units,
            "rejected_lists": [str(error) for error in self.rejected],
        }


def compare_bundles(
    before: Rescorer, after: Rescorer, lists: Sequence[NBestList], weights: Weights
) -> ListComparison:
    """Rank lists that have references by both bundles, and compare the errors with a paired bootstrap.

    Args:
        weights: weights for both, apart from λ: those of the adapted bundle were fitted with its models.

    Raises:
        FormatError: no list can be evaluated.
    """
    adapted = replace(weights, mixture=after.bundle.weights["default"].mixture)
    scored, rejected = score_lists(before, lists, weights)
    scored_after, _ = score_lists(after, lists, adapted)
    if not scored:
        raise FormatError("no list could be evaluated" + (f": {rejected[0]}" if rejected else ""))
    first = build_row(FIRST_PASS, "first pass", scored, map(order_by_first_pass, scored))
    rows = [
        build_row(name, "model", items, (order_by_decision(item, chosen) for item in items))
        for name, items, chosen in ((BEFORE, scored, weights), (AFTER, scored_after, adapted))
    ]
    comparison = Comparison(scored, first, [first, *rows])
    significance = Significance(comparison)
    drawn = significance.bootstrap
    return ListComparison(
        judge_rows(comparison, significance), significance.gain(rows[1], rows[0]), drawn.unit, drawn.n_units,
        len(scored), rejected,
    )  # fmt: skip
