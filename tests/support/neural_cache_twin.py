"""The neural cache of a session, one word at a time: the slow twin of ``rescorer.models.contexts``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rescorer.models.language_model import HALF_COUNT
from rescorer.models.neural import NeuralLanguageModel
from rescorer.trie import SENTENCE_END, Words
from tests.support.reference_scorer import reference_vectors


def list_past(
    model: NeuralLanguageModel, history: Words, confidences: Sequence[float]
) -> list[tuple[str, float, list[float]]]:
    """Each word that was said, how sure it is, and the vector from which the network predicts it."""
    past, utterance = [], 0
    for position, word in enumerate(history):
        sure = confidences[utterance] if utterance < len(confidences) else 1.0
        past.append((word, sure, reference_vectors(model, (), history[:position])[-1].tolist()))
        utterance += word == SENTENCE_END
    return past


def neural_cache_probs(
    model: NeuralLanguageModel,
    words: Words,
    history: Words,
    flatness: float,
    confidences: Sequence[float] = (),
) -> list[float]:
    """P_cache of each word of a hypothesis and of ``</s>``."""
    past, probs = list_past(model, history, confidences), []
    vectors = reference_vectors(model, words, history).tolist()
    for word, vector in zip((*words, SENTENCE_END), vectors, strict=True):
        part = total = 0.0
        for said, sure, before in past:
            alike = sure * math.exp(flatness * sum(a * b for a, b in zip(vector, before, strict=True)))
            total += alike
            part += alike if said == word else 0.0
        probs.append(part / total if total else 0.0)
    return probs


def log_probs_with_neural_cache(
    log_probs: Sequence[float],
    cached: Sequence[float],
    history: Words,
    confidences: Sequence[float],
    share: float,
) -> list[float]:
    """ln P of each word under a mixture and a neural cache with the probabilities ``cached``."""
    count, utterance = 0.0, 0
    for word in history:
        count += confidences[utterance] if utterance < len(confidences) else 1.0
        utterance += word == SENTENCE_END
    if not count:
        return list(log_probs)
    own = share * count / (count + HALF_COUNT)
    pairs = zip(log_probs, cached, strict=True)
    return [math.log((1 - own) * math.exp(log_prob) + own * prob) for log_prob, prob in pairs]
