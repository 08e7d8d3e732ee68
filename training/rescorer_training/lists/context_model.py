"""Probabilities of words after others, by an n-gram model or, without one, by their counts in the texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from rescorer.lm.ngrams import read_ngram
from rescorer.trie import build_trie
from rescorer_training.lists.patterns import Words


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
    """An n-gram model in a file, such as an ARPA file."""

    def __init__(self, path: Path) -> None:
        """Load the model; raises RescorerError if the file cannot be read as one."""
        self._model = read_ngram(path)

    def log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        return self._model.next_log_probs(context, words)

    def score(self, words: Words) -> float:
        return float(self._model.score(build_trie([tuple(words)])).log_probs.sum())
