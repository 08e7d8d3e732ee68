"""Interpolated modified Kneser-Ney smoothing.

The method is that of Chen & Goodman (1999), "An empirical study of smoothing techniques for language
modeling".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rescorer_training.ngram.counts import NGramCounts
from rescorer_training.ngram.smoothing.building import Smoothing, sum_by_context

logger = logging.getLogger(__name__)

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts of adjusted counts 1, 2 and 3 or more for texts too small or unusual to estimate them from.

lmplz is run with the same values.
"""


class KneserNeySplit(NamedTuple):
    """Subtracts a discount from every adjusted count; see ``MassSplit``."""

    adjusted: np.ndarray
    """(N,) adjusted counts; 0 for ``<s>``."""
    discounts: tuple[float, float, float]
    """Discounts of adjusted counts 1, 2 and 3 or more."""

    def __call__(
        self, context: np.ndarray, keep: np.ndarray, n_contexts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        taken = np.array([0.0, *self.discounts])[np.minimum(self.adjusted, 3)]  # (N,)
        np.copyto(taken, self.adjusted, where=~keep)
        total = sum_by_context(self.adjusted, context, n_contexts)
        left = sum_by_context(taken, context, n_contexts)
        left = np.where(total > 0, left / np.maximum(total, 1), 1.0)
        return (self.adjusted[keep] - taken[keep]) / total[context[keep]], left


def smooth_kneser_ney(counts: Sequence[NGramCounts], start_id: int) -> Smoothing:
    """Apply Kneser-Ney smoothing to the counts of a text, one table per order."""
    adjusted = [
        adjust_counts(table, higher) for table, higher in zip(counts, [*counts[1:], None], strict=True)
    ]
    adjusted[0][start_id] = 0  # <s> is never predicted
    splits = [
        KneserNeySplit(of_order, estimate_discounts(of_order, n)) for n, of_order in enumerate(adjusted, 1)
    ]
    return Smoothing(splits, interpolated=True)


def adjust_counts(table: NGramCounts, higher: NGramCounts | None) -> np.ndarray:
    """Count the distinct words that precede each n-gram: (N,) int64.

    N-grams that begin with ``<s>`` keep their raw counts, and so do n-grams of the highest order, for which
    ``higher`` is None.
    """
    if higher is None:
        return table.count
    adjusted = np.bincount(higher.suffix[higher.count > 0], minlength=len(table))
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
