"""Mix language models word by word, P(w|h) = Σ_m λ_m · P_m(w|h); needs neither torch nor KenLM.

Models with different vocabularies are aligned first, see ``vocabulary_alignment``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, did_you_mean, quote, shorten
from rescorer.lm.base import EdgeScores


def mix(log_probs: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Compute ln Σ_m λ_m · exp(log_probs[m]), (E,) float64; models of weight 0 are skipped."""
    weighted = [part + math.log(w) for part, w in zip(log_probs, weights, strict=True) if w > 0]
    return reduce(np.logaddexp, weighted)


def check_mixture(weights: Mapping[str, float], known: Sequence[str], backward: Collection[str] = ()) -> None:
    """Check the interpolation weights λ of a mixture.

    Args:
        known: names of the models.
        backward: names of those that are backward models.

    Raises:
        ConfigError: If a weight names a model that is not in ``known`` or is not between 0 and 1, the weights
            do not sum to 1, or forward and backward models are named together.
    """
    unknown = sorted(set(weights) - set(known))
    if unknown:
        meant = did_you_mean(unknown[0], known)
        names = shorten(str(unknown), MAX_QUOTED_CHARS)
        raise ConfigError(f"mixture names the models {names}; the bundle has {sorted(known)}{meant}")
    if any(not 0 <= weight <= 1 for weight in weights.values()) or abs(sum(weights.values()) - 1) > 1e-6:
        given = shorten(str(dict(weights)), MAX_QUOTED_CHARS)
        raise ConfigError(f"mixture weights are {given}; expected numbers between 0 and 1 that sum to 1")
    forward_names = [name for name in weights if name not in backward]
    if forward_names and len(forward_names) < len(weights):
        backward_name = next(name for name in weights if name in backward)
        raise ConfigError(
            f"mixture names the forward model {quote(forward_names[0])} and the backward model "
            f"{quote(backward_name)}, which predict a word from different words; leave one direction out of "
            "the mixture, and give its models weights of their own"
        )


def mix_scores(scores: Mapping[str, EdgeScores], weights: Mapping[str, float]) -> EdgeScores:
    """Compute the mixture's ln P of every edge; its unknown words are those of the first model.

    Args:
        weights: λ of models of one direction, see ``check_mixture``.
    """
    log_probs = mix([scores[name].log_probs for name in weights], list(weights.values()))
    return replace(scores[next(iter(weights))], log_probs=log_probs, encodings={}, cached=None)
