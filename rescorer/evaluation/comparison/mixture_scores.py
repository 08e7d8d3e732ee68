"""Score lists under several interpolation weights of the mixture; the models are run once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.tuned import MixtureScores
from rescorer.evaluation.tuning.parameters import DEFAULT_FREE, Parameters
from rescorer.pipeline import Rescorer
from rescorer.score_combination import CACHE, NEURAL_CACHE
from rescorer.types import Weights


def score_mixtures(
    rescorer: Rescorer, scored: Sequence[ScoredList], weights: Weights, free: Sequence[str] = DEFAULT_FREE
) -> MixtureScores | None:
    """Mix the models' scores of every word under each choice of λ; None if tuning does not change the λ.

    The λ of caches are searched if lists have previous utterances and the mixture is one of forward models,
    for the neural cache with a network that remembers.

    Args:
        weights: complete weights that tuning starts from.
        free: names of the weights that may change; see ``Parameters.choose``.

    Raises:
        ConfigError: a name is unknown.
    """
    backward = not set(weights.mixture).isdisjoint(rescorer.bundle.backward)
    has_sessions = not backward and any(item.nbest.previous for item in scored)
    remembers = not rescorer.bundle.remembers.isdisjoint(weights.mixture)
    occasional = [CACHE] * has_sessions + [NEURAL_CACHE] * (has_sessions and remembers)
    parameters = Parameters.choose(weights, free, occasional=occasional)
    if not (parameters.tunes_mixture or parameters.tunes_cache or parameters.tunes_neural_cache):
        return None
    choices = tuple(parameters.choose_mixtures())
    mixtures = [dict(zip(parameters.models, choice.shares, strict=True)) for choice in choices]
    caches = [choice.cache for choice in choices]
    neural = [(choice.neural_cache, choice.flatness) for choice in choices]
    log_probs = rescorer.mixture_log_probs([item.nbest for item in scored], mixtures, caches, neural)
    ends = np.cumsum([len(item.words) for item in scored])[:-1]
    return MixtureScores(choices, np.split(log_probs, ends, axis=1), parameters.models)
