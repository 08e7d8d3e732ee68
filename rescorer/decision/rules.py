"""Apply a decision rule to a ranked list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rescorer.decision.bayes_risk import expected_errors, fewest_errors_first
from rescorer.errors import InvalidList, LimitExceeded
from rescorer.ranking import Ranking, posteriors
from rescorer.trie import Words
from rescorer.types import DecisionRule


def apply_rule(ranking: Ranking, rule: DecisionRule, words: Sequence[Words]) -> Ranking:
    """Decide a list that is ranked by its totals.

    Args:
        ranking: the list, largest total first.
        words: canonical words of each hypothesis, in input order.

    Raises:
        InvalidList: the list is too long for the rule.
    """
    if rule.kind == "maximum":
        return ranking
    try:
        return _rank_by_expected_errors(ranking, rule, words)
    except LimitExceeded as error:
        raise InvalidList(error.message, list_id=ranking.nbest.id, field=error.field) from None


def _rank_by_expected_errors(ranking: Ranking, rule: DecisionRule, words: Sequence[Words]) -> Ranking:
    positions = np.sort(ranking.order)
    totals = np.array([ranking.totals[i] for i in positions])
    errors = expected_errors([words[i] for i in positions], posteriors(totals, rule.temperature), rule.unit)
    by_position = np.full(len(words), np.nan)
    by_position[positions] = errors
    order = positions[fewest_errors_first(errors, totals)].tolist()
    return replace(ranking, order=order, decision=rule, expected_errors=by_position.tolist())
