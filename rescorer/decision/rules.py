"""Apply a decision rule to a ranked list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rescorer.decision.bayes_risk import expected_errors, fewest_errors_first
from rescorer.decision.confusion_network import build_network
from rescorer.decision.distances import count_steps
from rescorer.decision.word_spans import find_spans
from rescorer.errors import InvalidList, LimitExceeded
from rescorer.ranking import Ranking, posteriors
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import DecisionRule

STEPS_PER_ROW = 2000
"""Least time of aligning one word to a confusion network, in units of ``distances.count_steps``."""
STEPS_PER_SLOT = 400
"""Time of visiting one slot of a network, which every hypothesis does, in the same units."""


def apply_rule(
    ranking: Ranking, rule: DecisionRule, words: Sequence[Words], normaliser: Normaliser
) -> Ranking:
    """Decide a list that is ranked by its totals.

    Args:
        ranking: the list, largest total first.
        words: canonical words of each hypothesis, in input order.
        normaliser: what the words come from; it also finds how they are written, and their times.

    Raises:
        InvalidList: the list is too long for the rule.
    """
    if rule.kind == "maximum":
        return ranking
    try:
        if rule.kind == "minimum_bayes_risk":
            return _order_by_expected_errors(ranking, rule, words)
        return _add_consensus(ranking, rule, words, normaliser)
    except LimitExceeded as error:
        raise InvalidList(error.message, list_id=ranking.nbest.id, field=error.field) from None


def estimate_steps(rule: DecisionRule, words: Sequence[Words]) -> int:
    """Estimate the work that a rule takes for one list, in units of ``distances.count_steps``.

    For minimum Bayes risk this is an upper bound: equal hypotheses, which are compared once, and words that
    all have in common, which are not compared, count too.
    """
    if rule.kind == "maximum":
        return 0
    lengths = [len(hypothesis) for hypothesis in words]
    if rule.kind == "confusion_network":
        longest = max(lengths, default=0)  # a network seldom has many more slots
        return sum(lengths) * (STEPS_PER_ROW + longest) + len(words) * longest * STEPS_PER_SLOT
    return count_steps(
        lengths if rule.unit == "word" else [sum(map(len, hypothesis)) for hypothesis in words]
    )


def _order_by_expected_errors(ranking: Ranking, rule: DecisionRule, words: Sequence[Words]) -> Ranking:
    positions = np.sort(ranking.order)
    totals = ranking.totals[positions]
    errors = expected_errors([words[i] for i in positions], posteriors(totals, rule.temperature), rule.unit)
    by_position = np.full(len(words), np.nan)
    by_position[positions] = errors
    order = positions[fewest_errors_first(errors, totals)].tolist()
    return replace(ranking, order=order, decision=rule, expected_errors=by_position)


def _add_consensus(
    ranking: Ranking, rule: DecisionRule, words: Sequence[Words], normaliser: Normaliser
) -> Ranking:
    """Keep the order, and add the consensus of the hypotheses to the answer."""
    order = ranking.order
    shares = posteriors(ranking.totals[list(order)], rule.temperature).tolist()
    hypotheses = [ranking.nbest.hypotheses[i] for i in order]
    spans = [
        find_spans(hypothesis.fields, words[i], normaliser.normalise)
        for i, hypothesis in zip(order, hypotheses, strict=True)
    ]
    surfaces = [normaliser.surfaces(hypothesis.text) for hypothesis in hypotheses]
    consensus = build_network([words[i] for i in order], shares, spans, surfaces).consensus()
    spoken = tuple(word.word for word in consensus)
    position = next((i for i in order if words[i] == spoken), None)
    return replace(ranking, decision=rule, consensus=consensus, consensus_position=position)
