"""Owns what an answer is where time was short: the n-gram alone, or the order as it came."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rescorer.combine import WORDS, totals
from rescorer.errors import InvalidList
from rescorer.pipeline import PreparedList
from rescorer.ranking import log_posteriors
from rescorer.types import RescoredHypothesis, RescoredList, Weights


def ngram_weights(weights: Weights, ngram: str) -> Weights:
    """Weights that give the n-gram what all language models have together."""
    return replace(weights, lm={ngram: sum(weights.lm.values())}, mixture={ngram: 1.0})


def first_pass(prepared: PreparedList, weights: Weights, label: str) -> RescoredList:
    """A list in its own order, its totals of streams and words only.

    Raises:
        InvalidList: a total is not finite.
    """
    nbest = prepared.nbest
    components = {name: np.array(values, dtype=np.float64) for name, values in nbest.streams.items()}
    components[WORDS] = np.array([len(each) for each in prepared.words], dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # answered below
        total = totals(components, replace(weights, lm={}, oov=0.0))
    for i in np.flatnonzero(~np.isfinite(total))[:1]:
        message = f"the total is {total[i]}; the scores or weights are too large"
        raise InvalidList(message, list_id=nbest.id, hypothesis=int(i), field="streams")
    posteriors = log_posteriors(total)
    hypotheses = tuple(
        RescoredHypothesis(
            text=each.text,
            original_rank=i,
            total=float(total[i]),
            log_posterior=float(posteriors[i]),
            components={name: float(values[i]) for name, values in components.items()},
            fields=each.fields,
        )
        for i, each in enumerate(nbest.hypotheses)
    )
    return RescoredList(nbest.id, hypotheses, weights, label, fields=nbest.fields, context=nbest.context)
