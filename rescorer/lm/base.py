"""Interface of a language model to the pipeline: a trie in, one log-probability per edge out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rescorer.trie import HypothesisTrie


@dataclass(frozen=True, slots=True)
class EdgeScores:
    """One model's scores for every edge of a trie."""

    log_probs: np.ndarray
    """(E,) float64, ln P(word | path from the root)."""
    unknown: np.ndarray
    """(E,) bool, True if the word of the edge is not in the model's vocabulary."""


class LanguageModel(Protocol):
    """A model that scores tries; it encodes words in its own way."""

    name: str

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        """Score every edge. Not thread-safe: call it from one thread at a time."""

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """Divide the probability of ``<unk>`` among the words that this model does not know.

        Args:
            log_shares: ln of the share of each such word that is in another model's vocabulary.
            default: ln of the share of each remaining unknown word.
        """

    def log_share(self, word: str) -> float:
        """Logarithm of the word's share of P(``<unk>``); 0 for words in the vocabulary."""

    def vocabulary(self) -> frozenset[str]:
        """Words that the model knows, without ``<s>``, ``</s>`` and ``<unk>``."""
