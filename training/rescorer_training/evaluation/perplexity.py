"""Perplexity of models on a text under several treatments of unknown words.

Two perplexities are comparable only under the same treatment of unknown words, vocabulary and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.perplexity import to_perplexity
from rescorer.lm.files.arpa_ngrams import LOG10_ZERO
from rescorer.lm.ngrams import LN_10
from rescorer.score_combination import MIXTURE
from rescorer_training.evaluation.token_scores import TokenScores

LOG_ZERO = (LOG10_ZERO + 1) * LN_10
"""Largest ln P of what has no probability, which ARPA files write as -99."""
BOTH_DIRECTIONS = "both directions"
"""Name of the pseudo-perplexity exp(-Σ_s ½(ln P_forward(s) + ln P_backward(s)) / T) of T tokens.

It is the geometric mean of the perplexities of both directions, whose scores of sentences are added in
rescoring (Xiong et al. 2017, "The Microsoft 2016 conversational speech recognition system"). The averages are
not normalised, but by Cauchy and Schwarz Σ_s √(P_forward(s) · P_backward(s)) ≤ 1: a normalised model that is
proportional to them has at most this perplexity.
"""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexities of one model. The tokens are all words, and one ``</s>`` per sentence."""

    n_unknown: int
    """Number of words that the model does not know."""
    shared: float
    """Perplexity if a word that only other models know gets its share of ``<unk>``, as in a bundle. Every
    model then spreads probability 1 over the same union of vocabularies, so the models are comparable."""
    counted: float | None
    """Perplexity if every unknown word gets the whole probability of ``<unk>``, as in KenLM's ``query`` and
    most papers. Comparable between models with the same vocabulary; None if a mixture's
    vocabularies differ."""
    excluded: float | None
    """Perplexity over the tokens that all models know. This is lower than the others for every model
    because the hardest words are excluded; None if no token is left."""
    n_impossible: int = 0
    """Number of tokens without a probability: the model gives them less than ``LOG_ZERO``, as a
    model that lacks ``<unk>`` gives to unknown words. SRILM calls them zeroprobs."""
    possible: float | None = None
    """Perplexity over the other tokens; None if no token is left."""


@dataclass(frozen=True, slots=True)
class TextPerplexity:
    """Perplexities of several models on one text."""

    n_sentences: int
    n_tokens: int
    n_excluded: int
    """Number of tokens that at least one model does not know."""
    models: Mapping[str, Perplexity]
    """Results by model name, including ``mixture`` if interpolation weights are given, and
    ``BOTH_DIRECTIONS`` if there are forward and backward models."""


def measure(scores: TokenScores, shares: Mapping[str, float] | None = None) -> TextPerplexity:
    """Compute the perplexity of every model and, given interpolation weights ``shares``, of their mixture."""
    excluded = np.logical_or.reduce(list(scores.unknown.values()))  # (T,)

    def measure_model(
        log_probs: np.ndarray, unknown: np.ndarray, log_shares: np.ndarray | None
    ) -> Perplexity:
        known = log_probs[~excluded]
        possible = log_probs[log_probs > LOG_ZERO]
        return Perplexity(
            n_unknown=int(unknown.sum()),
            shared=perplexity(log_probs),
            counted=None if log_shares is None else perplexity(log_probs - log_shares),
            excluded=perplexity(known) if len(known) else None,
            n_impossible=len(log_probs) - len(possible),
            possible=perplexity(possible) if len(possible) else None,
        )

    models = {
        name: measure_model(log_probs, scores.unknown[name], scores.log_shares[name])
        for name, log_probs in scores.log_probs.items()
    }
    if shares:
        unknown_to_all = np.logical_and.reduce([scores.unknown[name] for name in shares])
        same_vocabulary = not any(scores.log_shares[name].any() for name in shares)
        log_shares = np.zeros(len(unknown_to_all)) if same_vocabulary else None
        models[MIXTURE] = measure_model(scores.mix(shares), unknown_to_all, log_shares)
    if scores.has_both_directions:
        unknown = np.logical_or.reduce(list(scores.unknown.values()))
        averages = scores.average_directions(scores.log_probs), scores.average_directions(scores.log_shares)
        models[BOTH_DIRECTIONS] = measure_model(averages[0], unknown, averages[1])
    return TextPerplexity(len(scores.lengths), len(excluded), int(excluded.sum()), models)


def perplexity(log_probs: np.ndarray) -> float:
    """Return exp of the mean negative log-probability; ``log_probs``: (T,) in nats."""
    return to_perplexity(math.fsum(log_probs), len(log_probs))
