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
    """One model's scores for every edge of the trie that it read, in its direction."""

    log_probs: np.ndarray
    """(E,) float64, ln P(word | path from the root)."""
    unknown: np.ndarray
    """(E,) bool, True if the word of the edge is not in the model's vocabulary."""
    encodings: Mapping[str, np.ndarray] = field(default_factory=dict)
    """(H, K) float64, encodings of the words of each hypothesis, by the name of the projection; see
    ``VectorModel``."""
    backward: bool = False
    """Whether the edges are those of the reversed trie."""
    cached: np.ndarray | None = None
    """(E,) float64, P(word) in the neural cache of this model; None if it was not computed."""

    def sum_paths(self, trie: HypothesisTrie, partial: np.ndarray | None = None) -> np.ndarray:
        """ln P of each hypothesis, (H,) float64.

        Args:
            trie: the trie of the hypotheses, in reading order.
            partial: (H,) bool, hypotheses whose end is not scored; None: no hypothesis is partial. A backward
                model predicts no end, and takes the last word of a partial hypothesis for that of a sentence.
        """
        return trie.in_direction(self.backward).sum_paths(self.log_probs, None if self.backward else partial)

    def count_unknown(self, trie: HypothesisTrie) -> np.ndarray:
        """Number of unknown words of each hypothesis, (H,) float64; every model knows ``</s>``."""
        return trie.in_direction(self.backward).sum_paths(self.unknown)

    def path_edges(self, trie: HypothesisTrie, hypothesis: int) -> np.ndarray:
        """The edge of each word of a hypothesis in reading order, then that of ``</s>``: (n_words + 1,).

        The ``</s>`` of a backward model is the start of the sentence, predicted after its first word.
        """
        edges = trie.in_direction(self.backward).path_edges(hypothesis)
        return np.append(edges[-2::-1], edges[-1:]) if self.backward else edges


class LanguageModel(Protocol):
    """A model that scores tries; it encodes words in its own way."""

    name: str

    @property
    def backward(self) -> bool:
        """Whether the model reads sentences from their last words to their first ones."""

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        """Score every edge of a trie, or of its reversed one if the model is a backward one.

        Not thread-safe: call it from one thread at a time.
        """

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
