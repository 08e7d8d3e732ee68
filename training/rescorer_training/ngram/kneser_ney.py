"""Estimate interpolated modified Kneser-Ney models from n-gram counts.

The method is that of Chen & Goodman (1999), "An empirical study of smoothing techniques for language
modeling", with count cut-offs as in Heafield et al. (2013), "Scalable modified Kneser-Ney language model
estimation". An n-gram is pruned by its raw count; discounts are estimated from the adjusted counts of all
n-grams; and the mass of a pruned n-gram goes to the back-off weight of its context, so that every
distribution still sums to one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.ngram.counts import NGramCounts

logger = logging.getLogger(__name__)

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts of adjusted counts 1, 2 and 3 or more for texts too small or unusual to estimate them from.

lmplz is run with the same values.
"""


@dataclass(frozen=True, slots=True)
class NGramProbabilities:
    """The n-grams of one order that a model keeps; at order 1 row i is word i."""

    prefix: np.ndarray
    """(N,) int32: row of w_1 … w_{n-1} one order lower; zeros at order 1."""
    word: np.ndarray
    """(N,) int32: id of w_n."""
    prob: np.ndarray
    """(N,) float64: interpolated P(w_n | w_1 … w_{n-1}); 1 for ``<s>``."""
    backoff: np.ndarray
    """(N,) float64: back-off weight of w_1 … w_n as a context."""
    discounts: tuple[float, float, float]
    """Discounts of adjusted counts 1, 2 and 3 or more."""

    def __len__(self) -> int:
        return len(self.word)


def estimate_kneser_ney(
    counts: Sequence[NGramCounts], cutoffs: Sequence[int], *, start_id: int, vocabulary_size: int
) -> list[NGramProbabilities]:
    """Estimate a model of orders 1 to len(counts).

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
    adjusted = [
        adjust_counts(table, higher) for table, higher in zip(counts, [*counts[1:], None], strict=True)
    ]
    adjusted[0][start_id] = 0  # <s> is never predicted
    discounts = [estimate_discounts(order_counts, n) for n, order_counts in enumerate(adjusted, start=1)]

    prefix = counts[0].prefix[:vocabulary_size]
    kept = counts[0].word < vocabulary_size  # (N_{n-1},) whether the model keeps each lower-order n-gram
    prob = estimate_unigram_probs(adjusted[0], kept, discounts[0], start_id)  # (kept,) of those it keeps
    model = []
    for n, table in enumerate(counts[1:], start=2):
        row = np.cumsum(kept, dtype=np.int32) - 1  # (N_{n-1},) row in the model of each kept n-gram
        keep = (table.count > cutoffs[n - 1]) & kept[table.prefix] & (table.word < vocabulary_size)
        share, gamma = _split_mass(table.prefix, adjusted[n - 1], keep, discounts[n - 1], len(kept))
        model.append(
            NGramProbabilities(prefix, counts[n - 2].word[kept], prob, gamma[kept], discounts[n - 2])
        )
        prob = share + gamma[table.prefix[keep]] * prob[row[table.suffix[keep]]]
        prefix, kept = row[table.prefix[keep]], keep
    model.append(NGramProbabilities(prefix, counts[-1].word[kept], prob, np.ones_like(prob), discounts[-1]))
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


def adjust_counts(table: NGramCounts, higher: NGramCounts | None) -> np.ndarray:
    """Count the distinct words that precede each n-gram: (N,) int64.

    N-grams that begin with ``<s>`` keep their raw counts, and so do n-grams of the highest order, for which
    ``higher`` is None.
    """
    if higher is None:
        return table.count
    adjusted = np.bincount(higher.suffix, minlength=len(table))
    return np.where(table.starts_sentence, table.count, adjusted)


def estimate_discounts(adjusted: np.ndarray, n: int) -> tuple[float, float, float]:
    """Estimate the discounts of adjusted counts 1, 2 and 3 or more: Chen & Goodman (1999), equation 26.

    Returns ``FALLBACK_DISCOUNTS``, with a warning that names order ``n``, if a count of counts is zero or an
    estimate is out of range.
    """
    of_count = np.bincount(np.minimum(adjusted, 5), minlength=6).tolist()
    missing = [j for j in (1, 2, 3) if of_count[j] == 0]
    if missing:
        reason = f"no {n}-gram has adjusted count {missing[0]}"
    else:
        y = of_count[1] / (of_count[1] + 2 * of_count[2])
        one, two, three = (j - (j + 1) * y * of_count[j + 1] / of_count[j] for j in (1, 2, 3))
        if 0 <= one <= 1 and 0 <= two <= 2 and 0 <= three <= 3:
            return one, two, three
        reason = f"the estimates {one:.3f}, {two:.3f}, {three:.3f} are out of range"
    logger.warning("order %d: %s; using discounts %s instead", n, reason, FALLBACK_DISCOUNTS)
    return FALLBACK_DISCOUNTS


def estimate_unigram_probs(
    adjusted: np.ndarray, keep: np.ndarray, discounts: tuple[float, float, float], start_id: int
) -> np.ndarray:
    """Estimate unigram probabilities, interpolated with the uniform distribution.

    Args:
        adjusted: (V,) adjusted counts, 0 for ``start_id``.
        keep: (V,) whether the model has each word; the mass of other words is spread evenly over these.

    Returns:
        (kept,) float64, 1 for ``start_id``.
    """
    share, gamma = _split_mass(np.zeros(len(adjusted), np.int32), adjusted, keep, discounts, 1)
    prob = share + gamma[0] / (len(share) - 1)  # <s> is never predicted
    prob[start_id] = 1.0
    return prob


def _split_mass(
    context: np.ndarray, adjusted: np.ndarray, keep: np.ndarray, discounts: tuple[float, ...], n_contexts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split the probability mass of each context between its kept n-grams and the shorter context.

    Args:
        context: (N,) context that each n-gram extends.

    Returns:
        (kept,) probability of each kept n-gram before interpolation; and (n_contexts,) mass of the shorter
        context, 1 for a context without n-grams.
    """
    taken = np.array([0.0, *discounts])[np.minimum(adjusted, 3)]  # (N,)
    np.copyto(taken, adjusted, where=~keep)
    total = np.bincount(context, weights=adjusted, minlength=n_contexts)
    gamma = np.bincount(context, weights=taken, minlength=n_contexts)
    gamma = np.where(total > 0, gamma / np.maximum(total, 1), 1.0)
    return (adjusted[keep] - taken[keep]) / total[context[keep]], gamma
