"""Build back-off models from n-gram counts, whatever divides the probability mass of a context.

A smoothing method divides the mass of each context between its n-grams and the shorter context (a
``MassSplit``). In an interpolated model, each n-gram also gets its part of what is left to the shorter
context; in a back-off model (Katz 1987), only words without a share do. Both become the same kind of model:
n-grams have a probability, contexts a back-off weight.

Counts can be cut off as in Heafield et al. (2013), "Scalable modified Kneser-Ney language model estimation":
an n-gram is pruned by its raw count, discounts are estimated from all n-grams, and the mass of a pruned
n-gram is left to the shorter context, so that every distribution still sums to one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.ngram.counts import NGramCounts

MIN_UNSEEN_MASS = 1e-12
"""Least probability of the words unseen in a context; less is an error of rounding."""


@dataclass(frozen=True, slots=True)
class NGramProbabilities:
    """The n-grams of one order that a model keeps; at order 1 row i is word i."""

    prefix: np.ndarray
    """(N,) int32: row of w_1 … w_{n-1} one order lower; zeros at order 1."""
    word: np.ndarray
    """(N,) int32: id of w_n."""
    prob: np.ndarray
    """(N,) float64: P(w_n | w_1 … w_{n-1}); 1 for ``<s>``."""
    backoff: np.ndarray
    """(N,) float64: back-off weight of w_1 … w_n as a context."""
    discounts: tuple[float, ...]
    """What the smoothing method discounts of small counts, for reports; may be empty."""

    def __len__(self) -> int:
        return len(self.word)


class MassSplit(Protocol):
    """How one order divides the mass of each context between its n-grams and the shorter context."""

    @property
    def discounts(self) -> tuple[float, ...]:
        """See ``NGramProbabilities``."""

    def __call__(
        self, context: np.ndarray, keep: np.ndarray, n_contexts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Divide the mass of each context.

        Args:
            context: (N,) context that each n-gram extends, from 0 to ``n_contexts`` - 1.
            keep: (N,) bool, whether the model keeps each n-gram.

        Returns:
            (kept,) share of each kept n-gram; and (n_contexts,) mass left to the shorter context, 1 for a
            context without n-grams. Those of a context sum to 1.
        """


class Smoothing(NamedTuple):
    """A smoothing method, applied to the counts of one text."""

    splits: Sequence[MassSplit]
    """One per order."""
    interpolated: bool


def build_model(
    counts: Sequence[NGramCounts],
    cutoffs: Sequence[int],
    smoothing: Smoothing,
    *,
    start_id: int,
    vocabulary_size: int,
) -> list[NGramProbabilities]:
    """Build a model of orders 1 to len(counts).

    Args:
        counts: one table per order, from ``count_ngrams``.
        cutoffs: n-grams of order n with raw counts up to cutoffs[n-1] are pruned.
        start_id: id of ``<s>``.
        vocabulary_size: number of words in the model. Words whose id is not below this number are out of its
            vocabulary; n-grams that contain such words are pruned regardless of their counts.

    Raises:
        ConfigError: there is not one cut-off per order, or the cut-offs decrease or would prune unigrams.
    """
    check_cutoffs(cutoffs, len(counts))
    n_words = vocabulary_size - 1  # <s> is never predicted
    prefix = counts[0].prefix[:vocabulary_size]
    kept = counts[0].word < vocabulary_size  # (N_{n-1},) whether the model keeps each lower-order n-gram
    uniform = np.where(np.arange(vocabulary_size) == start_id, 0.0, 1 / n_words)
    split, context = smoothing.splits[0], np.zeros(vocabulary_size, np.int32)
    shares = split(counts[0].prefix, kept, 1)
    prob, _ = _join_mass(*shares, context, uniform, n_words, smoothing.interpolated)
    prob[start_id] = 1.0
    model = []
    for n, table in enumerate(counts[1:], start=2):
        row = np.cumsum(kept, dtype=np.int32) - 1  # (N_{n-1},) row in the model of each kept n-gram
        # those of count 0 are only contexts, see NGramCounts
        keep = ((table.count > cutoffs[n - 1]) | (table.count == 0)) & kept[table.prefix]
        keep &= table.word < vocabulary_size
        shares = smoothing.splits[n - 1](table.prefix, keep, len(kept))
        lower = prob[row[table.suffix[keep]]]
        higher, backoff = _join_mass(*shares, table.prefix[keep], lower, n_words, smoothing.interpolated)
        model.append(
            NGramProbabilities(prefix, counts[n - 2].word[kept], prob, backoff[kept], split.discounts)
        )
        prob, prefix, kept, split = higher, row[table.prefix[keep]], keep, smoothing.splits[n - 1]
    model.append(NGramProbabilities(prefix, counts[-1].word[kept], prob, np.ones_like(prob), split.discounts))
    return model


def check_cutoffs(cutoffs: Sequence[int], order: int) -> None:
    """Check that the prefix and the suffix of every n-gram that the cut-offs keep are also kept.

    Raises:
        ConfigError: there is not one cut-off per order, or the cut-offs decrease or would prune unigrams.
    """
    if len(cutoffs) != order:
        raise ConfigError(
            f"got {len(cutoffs)} cut-offs {list(cutoffs)} for order {order}; expected one per order"
        )
    if cutoffs[0] != 0:
        raise ConfigError(
            f"the cut-off of order 1 is {cutoffs[0]}; expected 0; limit the vocabulary to remove words"
        )
    if any(low > high for low, high in itertools.pairwise(cutoffs)):
        raise ConfigError(
            f"cut-offs {list(cutoffs)} decrease; expected numbers that do not decrease, because "
            f"every n-gram that is kept needs its prefix"
        )


def count_raw(table: NGramCounts, start_id: int) -> np.ndarray:
    """Raw counts of one order, (N,); 0 for n-grams that end in ``<s>``, which is never predicted."""
    return np.where(table.word == start_id, 0, table.count)


def sum_by_context(values: np.ndarray, context: np.ndarray, n_contexts: int) -> np.ndarray:
    """Sum (N,) values over the n-grams of each context, (n_contexts,) float64."""
    return np.bincount(context, weights=values, minlength=n_contexts)


def _join_mass(
    share: np.ndarray,
    left: np.ndarray,
    context: np.ndarray,
    lower: np.ndarray,
    n_words: int,
    interpolated: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Join the shares of an order's n-grams with the probabilities of the shorter contexts.

    Args:
        share: (kept,) and ``left`` (n_contexts,), see ``MassSplit``.
        context: (kept,) context of each kept n-gram.
        lower: (kept,) probability of its word after the shorter context.
        n_words: number of words that can be predicted.

    Returns:
        (kept,) probabilities, and (n_contexts,) back-off weights.
    """
    if interpolated:
        return share + left[context] * lower, left
    seen = share > 0
    is_full = sum_by_context(seen, context, len(left)) == n_words  # no other word to leave anything to
    unseen_mass = 1 - sum_by_context(np.where(seen, lower, 0.0), context, len(left))
    backoff = np.where(is_full, 1.0, left / np.maximum(unseen_mass, MIN_UNSEEN_MASS))
    scale = np.where(is_full, 1 / (1 - np.where(is_full, left, 0.0)), 1.0)
    return np.where(seen, share * scale[context], backoff[context] * lower), backoff
