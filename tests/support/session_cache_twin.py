"""The cache of a session, one word at a time: the slow twin of ``rescorer.models.language_model``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from rescorer.models.language_model import HALF_COUNT, HALF_LIFE_WORDS, ORDER, PRIOR
from rescorer.trie import SENTENCE_END, Words


def count_session(history: Words, confidences: Sequence[float]) -> dict[tuple[str, ...], float]:
    """How much each n-gram of a history counts, the empty one included; n-grams may begin with its start."""
    certain = len([word for word in history if word == SENTENCE_END]) + 1
    of_utterances = [*(confidences or [1.0] * (certain - 1)), 1.0]
    counts: dict[tuple[str, ...], float] = defaultdict(float)
    utterance, said = 0, [SENTENCE_END]
    for position, word in enumerate(history):
        age = len(history) - 1 - position
        weight = of_utterances[utterance] * 0.5 ** (age / HALF_LIFE_WORDS)
        utterance += word == SENTENCE_END
        said.append(word)
        counts[()] += weight
        for order in range(1, min(ORDER, len(said)) + 1):
            counts[tuple(said[-order:])] += weight
    return counts


def cache_prob(word: str, before: Words, history: Words, confidences: Sequence[float] = ()) -> float:
    """P_cache of a word after the words ``before`` of its hypothesis, which follow the history."""
    counts = count_session(history, confidences)
    totals: dict[tuple[str, ...], float] = defaultdict(float)
    for ngram, count in counts.items():
        if ngram:
            totals[ngram[:-1]] += count
    if not counts[()]:
        return 0.0
    path = (SENTENCE_END, *history, *before)
    prob = counts[(word,)] / counts[()]
    for order in range(2, ORDER + 1):
        context = path[len(path) - order + 1 :]
        if len(context) == order - 1:
            prob = (counts[(*context, word)] + PRIOR * prob) / (totals[context] + PRIOR)
    return prob


def log_probs_with_cache(
    log_probs: Sequence[float], words: Words, history: Words, confidences: Sequence[float], share: float
) -> list[float]:
    """ln P of each word and of ``</s>`` under a mixture and the cache."""
    count = count_session(history, confidences)[()]
    if not count:
        return list(log_probs)
    own = share * count / (count + HALF_COUNT)
    return [
        math.log((1 - own) * math.exp(log_prob) + own * cache_prob(word, words[:i], history, confidences))
        for i, (log_prob, word) in enumerate(zip(log_probs, (*words, SENTENCE_END), strict=True))
    ]
