"""Order the hypotheses of scored lists as weights, or the first pass, rank them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rescorer.decision.bayes_risk import expected_errors, fewest_errors_first
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.error_rate.oracle import EvaluatedList, Selection
from rescorer.ranking import posteriors
from rescorer.score_combination import totals
from rescorer.types import Weights


def order_by_weights(scored: ScoredList, weights: Weights) -> list[int]:
    """Positions of the selected hypotheses of a list, as ``weights`` rank them."""
    return scored.selection.order(scored.words, totals(scored.components, weights))[0]


def order_by_expected_errors(scored: ScoredList, weights: Weights) -> list[int]:
    """Positions of the selected hypotheses of a list, by minimum Bayes risk in the unit that is counted.

    The posteriors are those of ``weights`` at the temperature of their decision rule.

    Raises:
        LimitExceeded: the hypotheses of the list are too many, or too long, to be compared.
    """
    order, total = scored.selection.order(scored.words, totals(scored.components, weights))
    positions = sorted(order)
    kept = total[positions]
    beliefs = posteriors(kept, weights.decision.temperature)
    errors = expected_errors([scored.words[i] for i in positions], beliefs, scored.evaluated.unit)
    return [positions[k] for k in fewest_errors_first(errors, kept)]


def order_by_decision(scored: ScoredList, weights: Weights) -> list[int]:
    """Positions of the selected hypotheses of a list, by ``weights`` and their decision rule.

    Raises:
        LimitExceeded: as in ``order_by_expected_errors``.
    """
    if weights.decision.kind == "minimum_bayes_risk":
        return order_by_expected_errors(scored, weights)
    return order_by_weights(scored, weights)


def order_by_first_pass(scored: ScoredList) -> list[int]:
    """All positions of a list, as the recogniser ranked them."""
    return list(scored.first_pass_order)


def order_selection_by_first_pass(scored: ScoredList, selection: Selection | None = None) -> list[int]:
    """Positions of the selected hypotheses, as the recogniser ranked them.

    Merging ranks them by the scores of the first pass, if these are known.

    Args:
        selection: which hypotheses take part; None for the selection of the list.
    """
    selection = scored.selection if selection is None else selection
    scores = scored.first_pass_totals
    if selection.merge and scores is not None:
        return selection.order(scored.words, scores)[0]
    kept = set(selection.order(scored.words, np.zeros(len(scored.words)), keep_order=True)[0])
    return [i for i in scored.first_pass_order if i in kept]


def order_by_file(scored: ScoredList) -> list[int]:
    """Positions of the selected hypotheses, in input order; merging ranks them by the first pass."""
    if scored.selection.merge:
        return order_selection_by_first_pass(scored)
    return scored.selection.order(scored.words, np.zeros(len(scored.words)), keep_order=True)[0]


def order_by_errors(scored: ScoredList) -> list[int]:
    """All positions of a list, fewest errors first: the order of an oracle."""
    errors = [counts.errors for counts in scored.evaluated.hypotheses]
    return sorted(range(len(errors)), key=errors.__getitem__)


def rerank(scored: ScoredList, weights: Weights) -> EvaluatedList:
    """Order the errors of a list as ``weights`` rank its hypotheses."""
    return reorder(scored.evaluated, order_by_weights(scored, weights))


def rank_by_first_pass(scored: ScoredList) -> EvaluatedList:
    """Move the hypothesis chosen by the first pass to the top of the list."""
    return reorder(scored.evaluated, order_by_first_pass(scored))


def reorder(evaluated: EvaluatedList, order: Sequence[int]) -> EvaluatedList:
    """The errors of the hypotheses at some positions of a list, in the order of the positions."""
    return replace(evaluated, hypotheses=tuple(evaluated.hypotheses[i] for i in order))
