"""What n-gram models share, whatever looks their n-grams up."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from rescorer.lm.base import EdgeScores
from rescorer.runtime.profiling import Phase, phase
from rescorer.trie import HypothesisTrie, Words

LN_10 = math.log(10.0)
"""Converts the base-10 logarithms of n-gram files to natural ones; no other scoring code uses base 10."""


class NgramModel(ABC):
    """A back-off model; see ``LanguageModel``.

    Attributes:
        name: name of the model in its bundle.
        backward: see ``LanguageModel``; the files of n-grams do not say it.
    """

    backward = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._log_shares: Mapping[str, float] = {}
        self._default_log_share = 0.0

    @property
    @abstractmethod
    def order(self) -> int:
        """Length of the longest n-grams."""

    @abstractmethod
    def vocabulary(self) -> AbstractSet[str]:
        """See ``LanguageModel``."""

    @abstractmethod
    def unigram_log_probs(self, words: Sequence[str]) -> np.ndarray:
        """ln P(word) without context, (n,) float64; unknown words get the probability of ``<unk>``."""

    @abstractmethod
    def next_log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        """ln P of each of several words, or of ``</s>``, after ``<s>`` and a context, (n,) float64.

        Unknown words get the probability of ``<unk>``, not only a share of it.
        """

    @abstractmethod
    def edge_log10_probs(self, trie: HypothesisTrie) -> np.ndarray:
        """log10 P of every edge of a trie, (E,); unknown words get the probability of ``<unk>``."""

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """See ``LanguageModel``."""
        self._log_shares, self._default_log_share = log_shares, default

    def log_share(self, word: str) -> float:
        """See ``LanguageModel``."""
        if word in self.vocabulary():
            return 0.0
        return self._log_shares.get(word, self._default_log_share)

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        """See ``LanguageModel``."""
        with phase(Phase.NGRAM):
            trie = trie.in_direction(self.backward)
            vocabulary = self.vocabulary()
            unknown = np.array([word not in vocabulary for word in trie.words] + [False])
            log_probs = self.edge_log10_probs(trie).astype(np.float64) * LN_10
            edge_unknown = unknown[trie.edge_word]
            if unknown.any():
                log_shares = np.zeros(len(unknown))
                log_shares[unknown] = [self.log_share(trie.words[i]) for i in np.flatnonzero(unknown)]
                log_probs += log_shares[trie.edge_word]
            return EdgeScores(log_probs, edge_unknown, backward=self.backward)
