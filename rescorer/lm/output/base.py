"""Owns what every output layer is to the rest: context vectors in, normalised log-probabilities out."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class OutputLayer(Protocol):
    """An ``nn.Module`` whose probabilities sum to 1 over the words it can predict, ids 0 … n_words-1."""

    word_weight: nn.Parameter | Tensor
    """(≥ n_words, D), a row a word, maybe the input embedding; in a tree (n_words - 1, D), one a decision."""

    @property
    def n_words(self) -> int: ...

    def start_from_unigrams(self, counts: Tensor) -> None:
        """Sets the biases so that zero weights would predict the unigram distribution; counts: (n_words,)."""

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Σ −ln P(word | hidden) over the batch, for training; hidden: (N, D), words: (N,)."""

    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """ln P(words[e] | hidden[rows[e]]) for every edge e: hidden (N, D), rows and words (E,) → (E,)."""

    def distribution(self, hidden: Tensor) -> Tensor:
        """ln P(w | hidden) of every word, (N, D) → (N, n_words): the plain twin of ``log_probs``."""
