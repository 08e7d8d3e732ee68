"""Score lists under several interpolation weights of the mixture; the models are run once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.evaluation.comparison.tuned import MixtureScores
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList


def score_mixtures(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    models: Sequence[str],
    lambdas: Sequence[tuple[float, ...]],
) -> MixtureScores:
    """Mix the models' scores of every word under each choice of λ.

    Args:
        lists: lists that can be scored.
        models: the models that the λ belong to.
        lambdas: one value per model, which sum to 1; those of the start come first.
    """
    choices = [dict(zip(models, shares, strict=True)) for shares in lambdas]
    log_probs = rescorer.mixture_log_probs(lists, choices)
    ends = np.cumsum([len(nbest.hypotheses) for nbest in lists])[:-1]
    return MixtureScores(tuple(lambdas), np.split(log_probs, ends, axis=1))
