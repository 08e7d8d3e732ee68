"""Owns what an answer is where time was short: the n-gram alone, or the order as it came."""

from __future__ import annotations

from dataclasses import replace

from rescorer.pipeline import PreparedList, components_of
from rescorer.ranking import Ranking, ranking
from rescorer.score_combination import totals
from rescorer.types import Weights


def ngram_weights(weights: Weights, ngram: str) -> Weights:
    """Weights that give the n-gram what all language models have together."""
    return replace(weights, lm={ngram: sum(weights.lm.values())}, mixture={ngram: 1.0})


def first_pass(prepared: PreparedList, weights: Weights) -> Ranking:
    """A list in its own order, its totals of streams and words only.

    Raises:
        InvalidList: a total is not finite.
    """
    components = components_of(prepared, {})
    total = totals(components, replace(weights, lm={}, oov=0.0))
    return ranking(prepared.nbest, components, total, keep_order=True)
