"""Owns the plain scorer: one sentence at a time, nothing shared, float64; the twin that the trie is
tested against, kept slow and obvious on purpose."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch

from rescorer.lm.base import LanguageModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.ngram import LN_10, NgramModel
from rescorer.trie import Words


def plain_log_probs(model: LanguageModel, words: Words, context: Words = ()) -> np.ndarray:
    """ln P of each word and of ``</s>`` after the context: (n + 1,) float64."""
    if isinstance(model, NgramModel):
        return _ngram(model, words, context)
    if isinstance(model, NeuralLanguageModel):
        return _neural(model, words, context)
    raise TypeError(f"no plain twin for {type(model).__name__}")


def plain_mixture(
    models: Mapping[str, LanguageModel], weights: Mapping[str, float], words: Words, context: Words = ()
) -> np.ndarray:
    """ln Σ_m λ_m · P_m of each word and of ``</s>``: (n + 1,) float64."""
    parts = [w * np.exp(plain_log_probs(models[name], words, context)) for name, w in weights.items()]
    return np.log(np.sum(parts, axis=0))


def _ngram(model: NgramModel, words: Words, context: Words) -> np.ndarray:
    text = [model.spelling(word) for word in (*context, *words)]
    log10_probs = np.array([score for score, _, _ in model.kenlm.full_scores(" ".join(text))])
    return log10_probs[len(context) :] * LN_10 + _shares(model, words)


def _neural(model: NeuralLanguageModel, words: Words, context: Words) -> np.ndarray:
    network = copy.deepcopy(model.model).cpu().double()
    ids = [*model.words.encode((*context, *words)), model.words.end]
    inputs = torch.tensor([[model.start_word, *ids[:-1]]])  # (1, T)
    with torch.no_grad():
        distribution = network.output.distribution(network.network(inputs)[0][0])  # (T, V)
    log_probs = np.array([float(distribution[t, i]) for t, i in enumerate(ids)])
    return log_probs[len(context) :] + _shares(model, words)


def _shares(model: NgramModel | NeuralLanguageModel, words: Words) -> np.ndarray:
    return np.array([*(model.log_share(word) for word in words), 0.0])
