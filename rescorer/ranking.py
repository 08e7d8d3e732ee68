"""Owns the order of a list: ties settled, posteriors, merging of equal hypotheses (pure)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

TIE = 4
"""Totals are compared after rounding to so many decimals: float32 products change in the last digits with
the company a hypothesis is scored in, and an answer must not."""


def best_first(totals: np.ndarray) -> np.ndarray:
    """Indices from best to worst, ties in the original order: (H,) int64."""
    return np.argsort(-np.round(totals, TIE), kind="stable")


def log_posteriors(totals: np.ndarray) -> np.ndarray:
    """ln of the softmax of the totals, (H,) float64."""
    return totals - np.logaddexp.reduce(totals)


def merge_equal(keys: Sequence[Hashable], totals: np.ndarray) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Adds up, in probability, the totals of hypotheses with equal keys (log-sum-exp).

    Args:
        keys: what makes two hypotheses the same, such as their canonical words.
        totals: (H,).

    Returns:
        (H,) totals, where each group's best member has the group's sum and the others -inf; and for every
        hypothesis the indices that were merged into it, none for those that were merged away.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    merged = np.full(len(totals), -np.inf)
    members: list[tuple[int, ...]] = [()] * len(totals)
    for group in groups.values():
        keeper = group[int(best_first(totals[group])[0])]
        merged[keeper] = np.logaddexp.reduce(totals[group])
        members[keeper] = tuple(group)
    return merged, members
