"""Score lists under several interpolation weights of the mixture; the models are run once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.tuned import MixtureScores
from rescorer.evaluation.tuning.parameters import DEFAULT_FREE, Parameters
from rescorer.pipeline import Rescorer
from rescorer.types import Weights


def score_mixtures(
    rescorer: Rescorer, scored: Sequence[ScoredList], weights: Weights, free: Sequence[str] = DEFAULT_FREE
) -> MixtureScores | None:
    """Mix the models' scores of every word under each choice of λ; None if tuning does not change the λ.

    Args:
        weights: complete weights that tuning starts from.
        free: names of the weights that may change; see ``Parameters.choose``.

    Raises:
        ConfigError: a name is unknown.
    """
    parameters = Parameters.choose(weights, free)
    if not parameters.tunes_mixture:
        return None
    lambdas = tuple(parameters.choose_lambdas())
    choices = [dict(zip(parameters.models, shares, strict=True)) for shares in lambdas]
    log_probs = rescorer.mixture_log_probs([item.nbest for item in scored], choices, weights.cache)
    ends = np.cumsum([len(item.words) for item in scored])[:-1]
    return MixtureScores(lambdas, np.split(log_probs, ends, axis=1), parameters.models)
