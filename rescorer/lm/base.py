"""Owns what every language model is to the pipeline: a trie in, a log-probability an edge out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rescorer.trie import HypothesisTrie


@dataclass(frozen=True, slots=True)
class EdgeScores:
    """One model's view of every edge of a trie."""

    log_probs: np.ndarray
    """(E,) float64, ln P(word | path from the root)."""
    unknown: np.ndarray
    """(E,) bool, the model's vocabulary lacks the edge's word."""


class LanguageModel(Protocol):
    """Anything that scores a trie. Encoding words its own way is the model's business."""

    name: str

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        """Scores every edge; safe to call from one thread at a time."""

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """Says what part of P(<unk>) each unknown word has: ln of it, by word, ``default`` for others."""

    def log_share(self, word: str) -> float:
        """ln of the part of P(<unk>) that is the word's; 0 for words it knows."""

    def vocabulary(self) -> frozenset[str]:
        """The words it knows, without ``<s>``, ``</s>`` and ``<unk>``."""
