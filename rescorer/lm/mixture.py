"""Mix language models word by word, P(w|h) = Σ_m λ_m · P_m(w|h); needs neither torch nor KenLM.

Models with different vocabularies are aligned first, see ``vocabulary_alignment``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, did_you_mean, shorten
from rescorer.lm.base import EdgeScores


def mix(log_probs: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Compute ln Σ_m λ_m · exp(log_probs[m]), (E,) float64; models of weight 0 are skipped."""
    weighted = [part + math.log(w) for part, w in zip(log_probs, weights, strict=True) if w > 0]
    return reduce(np.logaddexp, weighted)


def check_mixture(weights: Mapping[str, float], known: Sequence[str]) -> None:
    """Check the interpolation weights λ of a mixture.

    Raises:
        ConfigError: If a weight names a model that is not in ``known`` or is not between 0 and 1, or the
            weights do not sum to 1.
    """
    unknown = sorted(set(weights) - set(known))
    if unknown:
        meant = did_you_mean(unknown[0], known)
        names = shorten(str(unknown), MAX_QUOTED_CHARS)
        raise ConfigError(f"mixture names the models {names}; the bundle has {sorted(known)}{meant}")
    if any(not 0 <= weight <= 1 for weight in weights.values()) or abs(sum(weights.values()) - 1) > 1e-6:
        given = shorten(str(dict(weights)), MAX_QUOTED_CHARS)
        raise ConfigError(f"mixture weights are {given}; expected numbers between 0 and 1 that sum to 1")


def mix_scores(scores: Mapping[str, EdgeScores], weights: Mapping[str, float]) -> np.ndarray:
    """Compute the mixture's ln P of every edge, (E,) float64."""
    return mix([scores[name].log_probs for name in weights], list(weights.values()))
