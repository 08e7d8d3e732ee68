"""Interface of an output layer: context vectors in, normalised log-probabilities out."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class OutputLayer(Protocol):
    """An ``nn.Module`` whose probabilities sum to 1 over the words it can predict, ids 0 … n_words-1."""

    word_weight: nn.Parameter | Tensor
    """(≥ n_words, D), one row per word, possibly the input embedding; in a tree (n_words - 1, D), one row per
    decision."""

    @property
    def n_words(self) -> int: ...

    def start_from_unigrams(self, counts: Tensor) -> None:
        """Set the biases so that with zero weights the layer predicts the unigram distribution.

        Args:
            counts: (n_words,) occurrences of each word.
        """

    def loss(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Σ −ln P(word | hidden) over the batch, for training; hidden: (N, D), words: (N,)."""

    def log_probs(self, hidden: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        """Compute ln P(words[e] | hidden[rows[e]]) for every edge e.

        Args:
            hidden: (N, D) context vectors.
            rows, words: (E,) int64; several edges may share a row.

        Returns:
            (E,) in the dtype of ``hidden``.
        """

    def distribution(self, hidden: Tensor) -> Tensor:
        """ln P(w | hidden) of every word, (N, D) → (N, n_words).

        A slow but simple reference for ``log_probs``.
        """
