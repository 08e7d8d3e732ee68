"""Exact search along a line of weights: errors of the top hypotheses as a step function.

Along a line, the total of each hypothesis is linear in the step, so the top hypothesis of a list only changes
at the corners of the upper envelope of these lines; between corners the errors are constant (Och, 2003,
"Minimum Error Rate Training in Statistical Machine Translation").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rescorer.evaluation.weight_search.segments import first_maximum_per_list, make_offsets, spread_over


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


MAX_HALVINGS = 6
"""How often a stretch is halved at most to rule out hypotheses."""
FEW_CANDIDATES = 4
"""Number of candidates per list from which halving a stretch further does not pay."""
MIN_CANDIDATES = 20_000
"""Number of candidates, of all lists, from which it pays: below, calls of numpy take longer than the sums."""


def compute_error_curve(
    intercepts: np.ndarray,
    slopes: np.ndarray,
    errors: np.ndarray,
    offsets: np.ndarray,
    low: float,
    high: float,
    min_candidates: int = MIN_CANDIDATES,
) -> ErrorCurve:
    """Sum, over lists, the errors of the hypothesis with the highest ``intercept + step * slope``.

    Of hypotheses with identical lines, the first one counts.

    Args:
        intercepts: (H,) float64, finite.
        slopes: (H,) float64, finite.
        errors: (H,) integer.
        offsets: (L + 1,) int64, where each list begins.
        low, high: first and last step of interest, finite; corners outside are left out.
        min_candidates: number of candidates above which stretches are halved; does not change the result.
    """
    lines = _Lines(intercepts, slopes, errors, offsets)
    part = _search(lines, low, high, MAX_HALVINGS, min_candidates)
    distinct, index = np.unique(part.corners, return_inverse=True)
    steps = np.zeros(len(distinct) + 1, dtype=np.int64)
    np.add.at(steps, index + 1, part.changes)
    steps[0] = part.start_errors
    return ErrorCurve(distinct, np.cumsum(steps))


class _Lines(NamedTuple):
    """Total of each hypothesis along a line of weights, and its errors; see ``compute_error_curve``."""

    intercepts: np.ndarray
    slopes: np.ndarray
    errors: np.ndarray
    offsets: np.ndarray


class _Stretch(NamedTuple):
    """Corners of all envelopes on a stretch of the line, in no particular order."""

    corners: np.ndarray
    changes: np.ndarray
    """Change of errors at each corner."""
    start_errors: int
    end_errors: int


def _search(lines: _Lines, low: float, high: float, halvings: int, min_candidates: int) -> _Stretch:
    """Find the corners between two steps.

    A line that is nowhere above the line on top at ``low``, or nowhere above the one on top at ``high``, is
    nowhere on top in between: on a short stretch, few lists and hypotheses remain.
    """
    intercepts, slopes, errors, offsets = lines
    at_low, at_high = intercepts + low * slopes, intercepts + high * slopes
    first, last = _top(at_low, slopes, offsets), _top(at_high, -slopes, offsets)
    start_errors, end_errors = int(errors[first].sum()), int(errors[last].sum())
    changing = np.flatnonzero(at_high[last] > at_high[first])
    is_candidate = at_high > spread_over(at_high[first], offsets)
    is_candidate &= at_low > spread_over(at_low[last], offsets)
    is_candidate[last[changing]] = is_candidate[first[changing]] = True
    rows = np.flatnonzero(is_candidate)
    counts = np.bincount(np.searchsorted(offsets, rows, side="right") - 1, minlength=len(offsets) - 1)
    lines = _Lines(intercepts[rows], slopes[rows], errors[rows], make_offsets(counts[changing]))
    if halvings and len(rows) > max(FEW_CANDIDATES * len(changing), min_candidates):
        middle = (low + high) / 2
        left = _search(lines, low, middle, halvings - 1, min_candidates)
        right = _search(lines, middle, high, halvings - 1, min_candidates)
        corners = np.concatenate([left.corners, [middle], right.corners])
        step = [right.start_errors - left.end_errors]  # not 0 if lines cross exactly in the middle
        changes = np.concatenate([left.changes, step, right.changes])
    else:
        corners, changes = _walk(lines, np.searchsorted(rows, first[changing]))
        inside = (low < corners) & (corners < high)
        corners, changes = corners[inside], changes[inside]
    rest = end_errors - start_errors - int(changes.sum())  # not 0 if a corner was rounded to beyond an end
    is_change = changes != 0
    corners = np.append(corners[is_change], [high] * bool(rest))
    changes = np.append(changes[is_change], [rest] * bool(rest)).astype(np.int64)
    return _Stretch(corners, changes, start_errors, end_errors)


def _top(values: np.ndarray, tie_break: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Position of the largest value per list; of several, the first with the largest ``tie_break``: (L,)."""
    top = values == spread_over(np.maximum.reduceat(values, offsets[:-1]), offsets)
    return first_maximum_per_list(np.where(top, tie_break, -np.inf), offsets)


def _walk(lines: _Lines, top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Follow all upper envelopes from left to right simultaneously, one corner per iteration.

    The line on top is followed by the line that crosses it first, of several by the steepest.

    Args:
        top: (L,) position of the line on top of each list at the left end.

    Returns:
        Corners, in no particular order, and the change of errors at each.
    """
    intercepts, slopes, errors, offsets = lines
    corners: list[np.ndarray] = [np.empty(0)]
    changes: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
    while len(top):
        rise = slopes - spread_over(slopes[top], offsets)
        drop = spread_over(intercepts[top], offsets) - intercepts
        rises = rise > 0  # a line that is not steeper than the one on top never crosses it further right
        lengths = np.add.reduceat(rises, offsets[:-1], dtype=np.int64)
        top_errors = errors[top][lengths > 0]
        intercepts, slopes, errors = intercepts[rises], slopes[rises], errors[rises]
        offsets = make_offsets(lengths[lengths > 0])
        if not len(intercepts):
            break
        with np.errstate(over="ignore"):  # nearly parallel lines cross nowhere
            crossing = drop[rises] / rise[rises]
        top = _top(-crossing, slopes, offsets)
        corners.append(crossing[top])
        changes.append(errors[top] - top_errors)
    return np.concatenate(corners), np.concatenate(changes)
