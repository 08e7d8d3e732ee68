"""Exact search along a line of weights: errors of the top hypotheses as a step function.

Along a line, the total of each hypothesis is linear in the step, so the top hypothesis of a list only changes
at the corners of the upper envelope of these lines; between corners the errors are constant (Och, 2003,
"Minimum Error Rate Training in Statistical Machine Translation").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ErrorCurve:
    """Errors as a function of the step, constant between neighbouring corners."""

    corners: np.ndarray
    """(C,) float64, strictly ascending."""
    errors: np.ndarray
    """(C + 1,) int64: before the first corner, between corners, after the last corner."""

    def at(self, step: float | np.ndarray) -> np.ndarray:
        """Errors at one or more steps, none of which may be a corner."""
        return self.errors[np.searchsorted(self.corners, step)]


def compute_error_curve(intercepts: np.ndarray, slopes: np.ndarray, errors: np.ndarray) -> ErrorCurve:
    """Sum, over lists, the errors of the hypothesis with the highest ``intercept + step * slope``.

    Walks all envelopes from left to right simultaneously, one corner per iteration: the line on top is
    followed by the line that crosses it first. Of hypotheses with identical lines, the first one counts.

    Args:
        intercepts: (L, N) float64, finite; short lists are padded with copies of their first hypothesis.
        slopes: (L, N) float64, finite.
        errors: (L, N) integer.
    """
    lists = np.arange(len(intercepts))
    flattest = slopes == slopes.min(axis=1, keepdims=True)
    top = np.where(flattest, intercepts, -np.inf).argmax(axis=1)  # (L,)
    start_errors = int(errors[lists, top].sum())
    corners: list[np.ndarray] = [np.empty(0)]
    changes: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
    while len(lists):
        rows = np.arange(len(lists))
        rise = slopes - slopes[rows, top][:, None]
        drop = intercepts[rows, top][:, None] - intercepts
        crossing = np.full(rise.shape, np.inf)
        with np.errstate(over="ignore"):  # nearly parallel lines cross nowhere
            np.divide(drop, rise, out=crossing, where=rise > 0)
        nearest = crossing.min(axis=1)
        next_top = np.where(crossing == nearest[:, None], slopes, -np.inf).argmax(axis=1)
        has_corner = np.isfinite(nearest)
        corners.append(nearest[has_corner])
        changes.append((errors[rows, next_top] - errors[rows, top])[has_corner])
        lists, top = lists[has_corner], next_top[has_corner]
        intercepts, slopes, errors = intercepts[has_corner], slopes[has_corner], errors[has_corner]
    distinct, index = np.unique(np.concatenate(corners), return_inverse=True)
    steps = np.zeros(len(distinct) + 1, dtype=np.int64)
    np.add.at(steps, index + 1, np.concatenate(changes))
    steps[0] = start_errors
    return ErrorCurve(distinct, np.cumsum(steps))
