"""Interface of a language model to the pipeline: a trie in, one log-probability per edge out."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from rescorer.trie import HypothesisTrie


@dataclass(frozen=True, slots=True)
class EdgeScores:
    """One model's scores for every edge of a trie."""

    log_probs: np.ndarray
    """(E,) float64, ln P(word | path from the root)."""
    unknown: np.ndarray
    """(E,) bool, True if the word of the edge is not in the model's vocabulary."""
    encodings: Mapping[str, np.ndarray] = field(default_factory=dict)
    """(H, K) float64, encodings of the words of each hypothesis, by the name of the projection; see
    ``VectorModel``."""


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

    def vocabulary(self) -> AbstractSet[str]:
        """Words that the model knows, without ``<s>``, ``</s>`` and ``<unk>``."""


@runtime_checkable
class VectorModel(LanguageModel, Protocol):
    """A language model that predicts words from context vectors, by which it can encode hypotheses."""

    vector_size: int
    """D, length of a context vector."""

    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
        """Score every edge, and encode the words of every hypothesis.

        An encoding is the mean of the vectors from which the words of the hypothesis and ``</s>`` are
        predicted, times a projection.

        Args:
            projections: (D, K) float64 by name.
        """
