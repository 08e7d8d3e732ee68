"""Statistics of one score stream: range, score per word, order, and correlation with length and errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rescorer.formats.score_units import NATS_PER_UNIT


@dataclass(frozen=True, slots=True)
class StreamStats:
    """One stream over all lists, in nats as read; the field names are keys of the JSON report."""

    name: str
    lists: int
    minimum: float
    maximum: float
    per_word: float
    """Sum of all scores divided by the number of words, where ``</s>`` counts as a word."""
    spread: float
    """Difference between the best and the worst score, mean over lists."""
    whole_numbers: bool
    """Whether no score has decimals."""
    compared: int
    """Lists whose scores are not all equal; the next three fields count only such lists."""
    first_is_best: int
    """Lists whose first hypothesis has the best score."""
    descending: int
    """Lists in which no score is higher than the one before."""
    ascending: int
    """Lists in which no score is lower than the one before: sorted in the wrong direction."""
    length_correlation: float | None
    """Pearson's r between score and number of words over all hypotheses."""
    error_correlation: float | None
    """Pearson's r between score and errors, mean over lists; below 0 if good scores mean few errors."""
    error_t: float | None
    """``error_correlation`` divided by its standard error."""

    def per_word_as(self, base: str, sign: float = 1.0) -> float:
        """Convert ``per_word`` to nats as if the scores had another base or, with sign -1, were costs."""
        return self.per_word * NATS_PER_UNIT[base] * sign

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "per_word_if_log10": self.per_word_as("10"),
            "per_word_if_log2": self.per_word_as("2"),
            "per_word_if_cost": self.per_word_as("e", -1.0),
        }


class StreamTally:
    """Adds up the statistics of one stream, list by list."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lists = 0
        self._minimum, self._maximum = math.inf, -math.inf
        self._words = 0
        self._spread = 0.0
        self._whole = True
        self._compared = self._first_is_best = self._descending = self._ascending = 0
        self._moments = np.zeros((3, 3))
        """Sums of products of (1, score, words)."""
        self._correlations: list[float] = []

    def add(self, scores: np.ndarray, n_words: np.ndarray, errors: np.ndarray | None) -> None:
        """Add a list: (H,) scores, words without ``</s>``, and errors if there is a reference."""
        self._lists += 1
        low, high = float(scores.min()), float(scores.max())
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        self._words += int(n_words.sum()) + len(n_words)
        self._spread += high - low
        self._whole = self._whole and bool((scores == np.rint(scores)).all())
        if low < high:
            self._compared += 1
            self._first_is_best += bool(scores[0] == high)
            self._descending += bool((scores[1:] <= scores[:-1]).all())
            self._ascending += bool((scores[1:] >= scores[:-1]).all())
        rows = np.stack([np.ones(len(scores)), scores, n_words])  # (3, H)
        with np.errstate(over="ignore", invalid="ignore"):  # huge scores overflow: no correlation
            self._moments += rows @ rows.T
        if errors is not None and (r := correlate(scores, errors)) is not None:
            self._correlations.append(r)

    def stats(self) -> StreamStats:
        mean, t = mean_and_t(self._correlations)
        return StreamStats(
            name=self.name,
            lists=self._lists,
            minimum=self._minimum,
            maximum=self._maximum,
            per_word=float(self._moments[0, 1]) / self._words,
            spread=self._spread / self._lists,
            whole_numbers=self._whole,
            compared=self._compared,
            first_is_best=self._first_is_best,
            descending=self._descending,
            ascending=self._ascending,
            length_correlation=_correlate_moments(self._moments),
            error_correlation=mean,
            error_t=t,
        )


def correlate(left: np.ndarray, right: np.ndarray) -> float | None:
    """Compute Pearson's r; None if one side does not vary or has values so large that they overflow."""
    if not (np.ptp(left) > 0 and np.ptp(right) > 0):
        return None  # checked before subtracting means, whose rounding errors look like variation
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = left - left.mean(), right - right.mean()
        x, y = (side / peak if (peak := np.abs(side).max()) > 0 else side for side in (x, y))
        scale = math.sqrt(float(x @ x) * float(y @ y))
        r = float(x @ y) / scale if scale > 0 else math.nan
    return max(-1.0, min(1.0, r)) if math.isfinite(r) else None


def _correlate_moments(moments: np.ndarray) -> float | None:
    n = moments[0, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = moments / n - np.outer(moments[0], moments[0]) / n**2
        scale = math.sqrt(max(0.0, float(covariance[1, 1])) * max(0.0, float(covariance[2, 2])))
        r = float(covariance[1, 2]) / scale if scale > 0 and math.isfinite(scale) else math.nan
    return max(-1.0, min(1.0, r)) if math.isfinite(r) else None


def mean_and_t(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Compute the mean, and the mean divided by its standard error; None if undefined."""
    if len(values) < 2:
        return (values[0] if values else None), None
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    return mean, mean / (deviation / math.sqrt(len(values))) if deviation > 0 else None
