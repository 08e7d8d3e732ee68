"""Interpolated Witten-Bell smoothing (Witten & Bell 1991), as in Chen & Goodman (1999), section 2.6.

A context h that occurred c(h) times, before T(h) distinct words, leaves T(h) / (c(h) + T(h)) of its mass to
the shorter context: every distinct word was something new once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rescorer_training.ngram.counts import NGramCounts
from rescorer_training.ngram.smoothing.building import Smoothing, count_raw, sum_by_context


class WittenBellSplit(NamedTuple):
    """Leaves to the shorter context one count for every distinct word; see ``MassSplit``."""

    counts: np.ndarray
    """(N,) raw counts."""

    @property
    def discounts(self) -> tuple[float, ...]:
        return ()

    def __call__(
        self, context: np.ndarray, keep: np.ndarray, n_contexts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        n_distinct = sum_by_context(self.counts > 0, context, n_contexts)
        total = sum_by_context(self.counts, context, n_contexts) + n_distinct
        left = sum_by_context(np.where(keep, 0, self.counts), context, n_contexts) + n_distinct
        left = np.where(total > 0, left / np.maximum(total, 1), 1.0)
        return self.counts[keep] / total[context[keep]], left


def smooth_witten_bell(counts: Sequence[NGramCounts], start_id: int) -> Smoothing:
    """Apply Witten-Bell smoothing to the counts of a text, one table per order."""
    return Smoothing([WittenBellSplit(count_raw(table, start_id)) for table in counts], interpolated=True)
