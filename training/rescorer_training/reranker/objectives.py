"""What training minimises: a loss of the scores of all lists, and its gradient by each score.

The losses of lists are added without weights. In expected errors and pairs, a list with many errors at stake
therefore counts more than one with few; in the cross entropy all lists in which errors differ count alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from rescorer.evaluation.weight_search.segments import (
    maximum_per_list,
    softmax_per_list,
    spread_over,
    sum_per_list,
)
from rescorer_training.reranker.arrays import TrainingArrays

ObjectiveName = Literal["expected errors", "cross entropy", "pairwise"]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
"""Names of the objectives; the first one is what is counted in the end, the others are convex."""
MAX_PAIR_DISTANCE = 16
"""How far apart in the list the two hypotheses of a pair may be: pairs grow with it, not with the square of
the list."""

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""From scores (H,) to the loss and its gradient (H,)."""


def make_loss(objective: ObjectiveName, arrays: TrainingArrays) -> Loss:
    """Prepare an objective for some lists."""
    return _LOSSES[objective](arrays)


def _make_expected_errors(arrays: TrainingArrays) -> Loss:
    """Σ_i p_i·errors_i, where p is the softmax of the scores of a list: minimum word error training.

    After Prabhavalkar et al. (2018), "Minimum Word Error Rate Training for Attention-based
    Sequence-to-Sequence Models".
    """
    errors, offsets = arrays.errors, arrays.offsets

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        posteriors = softmax_per_list(scores, offsets)
        weighted = posteriors * errors
        expected = sum_per_list(weighted, offsets)
        return float(expected.sum()), weighted - posteriors * spread_over(expected, offsets)

    return loss


def _make_cross_entropy(arrays: TrainingArrays) -> Loss:
    """-Σ_i q_i·ln p_i, where q is uniform over the hypotheses with the fewest errors of a list.

    Lists whose hypotheses all have as many errors are left out. After Cao et al. (2007), "Learning to Rank:
    From Pairwise Approach to Listwise Approach".
    """
    offsets, target = arrays.offsets, arrays.least_errors().astype(np.float64)
    n_least = sum_per_list(target, offsets)
    is_used = spread_over(n_least < np.diff(offsets), offsets).astype(np.float64)
    target *= is_used / spread_over(n_least, offsets)

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        relative = scores - spread_over(maximum_per_list(scores, offsets), offsets)
        exponentials = np.exp(relative)
        sums = spread_over(sum_per_list(exponentials, offsets), offsets)
        value = float(target @ (np.log(sums) - relative))
        return value, is_used * exponentials / sums - target

    return loss


def _make_pairwise(arrays: TrainingArrays) -> Loss:
    """Mean over the pairs of a list of Δerrors·ln(1 + exp(-Δscore)), for pairs with different errors.

    Pairs lie at most ``MAX_PAIR_DISTANCE`` apart. After Burges et al. (2005), "Learning to Rank using
    Gradient Descent", weighted by what is at stake.
    """
    better, worse, weight = find_pairs(arrays)
    n_scores = len(arrays.errors)

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        margin = scores[better] - scores[worse]
        value = float(weight @ np.logaddexp(0.0, -margin))
        slope = weight * np.exp(-np.logaddexp(0.0, margin))
        gradient = np.bincount(worse, slope, n_scores) - np.bincount(better, slope, n_scores)
        return value, gradient

    return loss


def find_pairs(arrays: TrainingArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of the better and the worse hypothesis of each pair, and the pair's weight, (P,) each."""
    errors, lengths = arrays.errors, np.diff(arrays.offsets)
    list_of = np.repeat(np.arange(arrays.n_lists), lengths)
    firsts, seconds = [], []
    for distance in range(1, min(MAX_PAIR_DISTANCE, int(lengths.max()) - 1) + 1):
        first = np.flatnonzero(
            (list_of[:-distance] == list_of[distance:]) & (errors[:-distance] != errors[distance:])
        )
        firsts.append(first)
        seconds.append(first + distance)
    none = [np.zeros(0, dtype=np.int64)]
    first, second = np.concatenate([*firsts, *none]), np.concatenate([*seconds, *none])
    is_ordered = errors[first] < errors[second]
    better, worse = np.where(is_ordered, first, second), np.where(is_ordered, second, first)
    n_pairs = np.bincount(list_of[better], minlength=arrays.n_lists)
    return better, worse, (errors[worse] - errors[better]) / n_pairs[list_of[better]]


_LOSSES: dict[ObjectiveName, Callable[[TrainingArrays], Loss]] = {
    "expected errors": _make_expected_errors,
    "cross entropy": _make_cross_entropy,
    "pairwise": _make_pairwise,
}
