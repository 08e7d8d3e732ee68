"""Probabilities of words after others, by an n-gram model or, without one, by their counts in the texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import kenlm
import numpy as np

from rescorer.lm.ngram import NgramModel
from rescorer_training.lists.patterns import Words

LN_10 = math.log(10.0)  # KenLM's scores are log10


class ContextModel(Protocol):
    """A language model."""

    def log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        """ln P of each of several words after the words of a sentence so far, (N,) float64."""

    def score(self, words: Words) -> float:
        """ln P of a sentence, in nats."""


class CountModel:
    """Relative counts of words, whatever their context; a word that was not counted counts once."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        total = sum(counts.values()) + 1
        self._log_probs = {word: math.log(count / total) for word, count in counts.items()}
        self._unknown = -math.log(total)

    def log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        return np.array([self._log_probs.get(word, self._unknown) for word in words])

    def score(self, words: Words) -> float:
        return float(self.log_probs((), words).sum())


class NGramContext:
    """An n-gram model in a file that KenLM reads."""

    def __init__(self, path: Path) -> None:
        """Load the model; raises RescorerError if the file cannot be read as one."""
        self._model = NgramModel(path).kenlm

    def log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        state, after = kenlm.State(), kenlm.State()
        self._model.BeginSentenceWrite(state)
        for word in context:
            self._model.BaseScore(state, word, after)
            state, after = after, state
        return np.array([self._model.BaseScore(state, word, after) for word in words]) * LN_10

    def score(self, words: Words) -> float:
        return float(self._model.score(" ".join(words))) * LN_10
