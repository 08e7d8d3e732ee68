"""Order the errors of scored lists as weights, or the first pass, rank their hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.error_rate.oracle import (
    EvaluatedList,
)
from rescorer.score_combination import totals
from rescorer.types import Weights


def rerank(scored: ScoredList, weights: Weights) -> EvaluatedList:
    """Order the errors of a list as ``weights`` rank its hypotheses."""
    order, _ = scored.selection.order(scored.words, totals(scored.components, weights))
    return _reorder(scored.evaluated, order)


def rank_by_first_pass(scored: ScoredList) -> EvaluatedList:
    """Move the hypothesis chosen by the first pass to the top of the list."""
    first = scored.first_pass_index
    others = [i for i in range(len(scored.words)) if i != first]
    return _reorder(scored.evaluated, [first, *others])


def select_by_first_pass(scored: ScoredList) -> EvaluatedList:
    """Rank the selected hypotheses by the scores of the first pass, or in its order if these are unknown."""
    scores = scored.first_pass_totals
    unknown = np.zeros(len(scored.words))
    order, _ = scored.selection.order(
        scored.words, unknown if scores is None else scores, keep_order=scores is None
    )
    return _reorder(scored.evaluated, order)


def _reorder(evaluated: EvaluatedList, order: Sequence[int]) -> EvaluatedList:
    return replace(evaluated, hypotheses=tuple(evaluated.hypotheses[i] for i in order))


def name_selected_first_pass(scored: ScoredList) -> str:
    """Name of the row of ``select_by_first_pass``; empty if it would equal the first pass."""
    merges = scored.selection.merge and scored.first_pass_totals is not None
    parts = ["merged"] * merges + ["empty dropped"] * scored.selection.drop_empty
    return ", ".join(["first pass", *parts]) if parts else ""
