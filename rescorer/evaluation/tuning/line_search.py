"""Owns the exact search along a line of weights: errors of the top hypotheses as a step function (pure).

Along a line each hypothesis's total is linear in the step, so that the top of a list changes only where the
upper envelope of its lines has a corner; between corners the errors are constant (Och, 2003, "Minimum Error
Rate Training in Statistical Machine Translation").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ErrorCurve:
    """Errors as a function of the step: constant between neighbouring corners."""

    corners: np.ndarray
    """(C,) float64, ascending and distinct."""
    errors: np.ndarray
    """(C + 1,) int64: before the first corner, between them, after the last."""

    def at(self, step: float | np.ndarray) -> np.ndarray:
        """Errors at steps that are no corner."""
        return self.errors[np.searchsorted(self.corners, step)]


def error_curve(intercepts: np.ndarray, slopes: np.ndarray, errors: np.ndarray) -> ErrorCurve:
    """Sum over lists of the errors of the hypothesis with the highest ``intercept + step * slope``.

    Walks all envelopes at once from the left, one corner a turn: from the line that is on top, the next one
    is the line that crosses it first. Hypotheses with the same line count as the first of them.

    Args:
        intercepts: (L, N) float64, finite; short lists are filled up with copies of their first hypothesis.
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
        with np.errstate(over="ignore"):  # lines that are all but parallel cross nowhere
            np.divide(drop, rise, out=crossing, where=rise > 0)
        nearest = crossing.min(axis=1)
        following = np.where(crossing == nearest[:, None], slopes, -np.inf).argmax(axis=1)
        goes_on = np.isfinite(nearest)
        corners.append(nearest[goes_on])
        changes.append((errors[rows, following] - errors[rows, top])[goes_on])
        lists, top = lists[goes_on], following[goes_on]
        intercepts, slopes, errors = intercepts[goes_on], slopes[goes_on], errors[goes_on]
    distinct, place = np.unique(np.concatenate(corners), return_inverse=True)
    steps = np.zeros(len(distinct) + 1, dtype=np.int64)
    np.add.at(steps, place + 1, np.concatenate(changes))
    steps[0] = start_errors
    return ErrorCurve(distinct, np.cumsum(steps))
