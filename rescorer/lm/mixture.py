"""Owns word-level linear mixing, P(w|h) = Σ_m λ_m · P_m(w|h), also of models with different vocabularies.

A word one model lacks and another knows is one of the words behind the first model's ``<unk>``. Its part
of that probability is fixed at start: P_m(w|h) = P_m(<unk>|h) · q_m(w), where q_m is the n-gram's unigram
distribution over the words m lacks (or uniform, where the n-gram is the one that lacks them). ``<unk>``
itself, standing for all words that nobody knows, is one more symbol in q_m. So every model spreads exactly
probability 1 over the union of the vocabularies and ``<unk>``, and so does their mixture.

A context-dependent share, P_kn(w|h) / Σ_{v∉list} P_kn(v|h), would follow the n-gram more closely but needs
a sum over all missing words for every context; q_m needs one at start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from rescorer.errors import ConfigError, did_you_mean
from rescorer.lm.base import EdgeScores, LanguageModel
from rescorer.lm.ngram import NgramModel
from rescorer.vocabulary import UNKNOWN


def mix(log_probs: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """ln Σ_m λ_m · exp(log_probs[m]), (E,) float64; weights that are 0 leave their model out."""
    weighted = [part + math.log(w) for part, w in zip(log_probs, weights, strict=True) if w > 0]
    return reduce(np.logaddexp, weighted)


def check_mixture(weights: Mapping[str, float], known: Sequence[str]) -> None:
    """Raises ConfigError unless every λ names a known model, none is negative and they sum to 1."""
    unknown = sorted(set(weights) - set(known))
    if unknown:
        meant = did_you_mean(unknown[0], known)
        raise ConfigError(f"the mixture names models {unknown}; the bundle has {sorted(known)}{meant}")
    if any(not 0 <= weight <= 1 for weight in weights.values()) or abs(sum(weights.values()) - 1) > 1e-6:
        raise ConfigError(
            f"mixture weights are {dict(weights)}; expected shares between 0 and 1 that sum to 1"
        )


def align_vocabularies(models: Sequence[LanguageModel]) -> None:
    """Fixes, for each model, the part of its ``<unk>`` that every word it lacks gets."""
    union = frozenset().union(*(model.vocabulary() for model in models))
    ngram = next((model for model in models if isinstance(model, NgramModel)), None)
    for model in models:
        missing = sorted(union - model.vocabulary())
        if not missing:
            continue
        if ngram is None or model is ngram:
            model.share_unknown({}, -math.log(len(missing) + 1))
            continue
        log_probs = ngram.unigram_log_probs([UNKNOWN, *missing])
        log_probs -= np.logaddexp.reduce(log_probs)
        model.share_unknown(dict(zip(missing, log_probs[1:].tolist(), strict=True)), float(log_probs[0]))


def mixed_scores(scores: Mapping[str, EdgeScores], weights: Mapping[str, float]) -> np.ndarray:
    """The mixture's ln P of every edge, (E,) float64."""
    return mix([scores[name].log_probs for name in weights], list(weights.values()))
