"""Katz's back-off smoothing with Good-Turing discounts (Katz 1987; Chen & Goodman 1999, section 2.5).

Counts r up to k = 5 are multiplied by a discount d_r below 1, so that as much mass is freed as the
Good-Turing estimate gives to unseen n-grams; larger counts are taken as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rescorer_training.ngram.counts import NGramCounts
from rescorer_training.ngram.smoothing.building import Smoothing, count_raw, sum_by_context

logger = logging.getLogger(__name__)

MAX_DISCOUNTED = 5
"""k: counts above it are reliable."""


class KatzSplit(NamedTuple):
    """Multiplies small counts by discounts; see ``MassSplit``.

    Where nothing is freed, because all words of a context are frequent, the context counts as one longer, and
    that one occurrence is what it leaves (Doug Paul's remedy, as in SRILM).
    """

    counts: np.ndarray
    """(N,) raw counts."""
    discounts: tuple[float, ...]
    """d_1, d_2, …: the factor of each count; 1 for larger counts."""

    def __call__(
        self, context: np.ndarray, keep: np.ndarray, n_contexts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        factors = np.array([1.0, *self.discounts, 1.0])
        counts = self.counts * factors[np.minimum(self.counts, len(factors) - 1)] * keep  # (N,)
        total = sum_by_context(self.counts, context, n_contexts)
        freed = sum_by_context(self.counts - counts, context, n_contexts)
        extra = (freed == 0) & (total > 0)
        freed, total = freed + extra, total + extra
        left = np.where(total > 0, freed / np.maximum(total, 1), 1.0)
        return counts[keep] / total[context[keep]], left


def smooth_katz(counts: Sequence[NGramCounts], start_id: int) -> Smoothing:
    """Apply Katz's smoothing to the counts of a text, one table per order."""
    raw = [count_raw(table, start_id) for table in counts]
    splits = [KatzSplit(of_order, estimate_good_turing(of_order, n)) for n, of_order in enumerate(raw, 1)]
    return Smoothing(splits, interpolated=False)


def estimate_good_turing(counts: np.ndarray, n: int) -> tuple[float, ...]:
    """Estimate the discounts d_1 … d_k of an order's counts; with fewer than k = 5, a warning names order n.

        d_r = (r*/r - a) / (1 - a),  r* = (r + 1) n_{r+1} / n_r,  a = (k + 1) n_{k+1} / n_1

    where n_r n-grams occur r times. In small or unusual texts such a factor may not lie between 0 and 1: then
    k is the largest below 5 for which all do, or nothing is discounted.
    """
    of_count = np.bincount(np.minimum(counts, MAX_DISCOUNTED + 2), minlength=MAX_DISCOUNTED + 3).tolist()
    for k in range(MAX_DISCOUNTED, 1, -1):
        if min(of_count[1 : k + 2]) == 0:
            continue
        a = (k + 1) * of_count[k + 1] / of_count[1]
        ratios = [(r + 1) * of_count[r + 1] / (r * of_count[r]) for r in range(1, k + 1)]
        discounts = tuple((ratio - a) / (1 - a) if a != 1 else 0.0 for ratio in ratios)
        if all(0 < discount < 1 for discount in discounts):
            if k < MAX_DISCOUNTED:
                logger.warning("order %d: Good-Turing discounts only of counts up to %d", n, k)
            return discounts
    logger.warning("order %d: the counts allow no Good-Turing discounts; nothing is discounted", n)
    return ()
