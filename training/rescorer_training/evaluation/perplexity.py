"""Owns the perplexity of models on a text, with the treatments of unknown words side by side; a figure
compares with another one only under the same treatment, vocabulary and tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rescorer.score_combination import MIXTURE
from rescorer_training.evaluation.token_scores import TokenScores


@dataclass(frozen=True, slots=True)
class Perplexity:
    """One model's, over tokens: every word and every ``</s>``."""

    n_unknown: int
    """Words that the model does not know."""
    shared: float
    """A word that only other models know has its part of ``<unk>``, as in a bundle: every model spreads
    probability 1 over the same union of vocabularies, so that their figures compare."""
    counted: float | None
    """Every unknown word is ``<unk>`` and has all of its probability, as KenLM's ``query`` and most papers
    count: compares between models of one vocabulary. None: a mixture of several vocabularies has none."""
    excluded: float | None
    """Over the tokens that all models know, the others left out as if never asked for; flatters everyone, for
    hard words are left out. None: nothing is left."""


@dataclass(frozen=True, slots=True)
class TextPerplexity:
    """What models give to one text."""

    n_sentences: int
    n_tokens: int
    n_excluded: int
    """Tokens that one model or another does not know."""
    models: Mapping[str, Perplexity]
    """By name; ``mixture`` where there are shares."""


def measure(scores: TokenScores, shares: Mapping[str, float] | None = None) -> TextPerplexity:
    """Perplexities of every model and, with λ in ``shares``, of their mixture."""
    excluded = np.logical_or.reduce(list(scores.unknown.values()))  # (T,)

    def of(log_probs: np.ndarray, unknown: np.ndarray, log_shares: np.ndarray | None) -> Perplexity:
        known = log_probs[~excluded]
        return Perplexity(
            n_unknown=int(unknown.sum()),
            shared=perplexity(log_probs),
            counted=None if log_shares is None else perplexity(log_probs - log_shares),
            excluded=perplexity(known) if len(known) else None,
        )

    models = {
        name: of(log_probs, scores.unknown[name], scores.log_shares[name])
        for name, log_probs in scores.log_probs.items()
    }
    if shares:
        nobody = np.logical_and.reduce([scores.unknown[name] for name in shares])
        one_vocabulary = not any(scores.log_shares[name].any() for name in shares)
        nothing_shared = np.zeros(len(nobody)) if one_vocabulary else None
        models[MIXTURE] = of(scores.mixed(shares), nobody, nothing_shared)
    return TextPerplexity(len(scores.lengths), len(excluded), int(excluded.sum()), models)


def perplexity(log_probs: np.ndarray) -> float:
    """exp of the mean −ln P."""
    return math.exp(-math.fsum(log_probs) / len(log_probs))
