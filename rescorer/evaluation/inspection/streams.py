"""Owns what an audit knows of one score stream: range, size a word, order, and how it goes with length and
errors; judges nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rescorer.formats.score_units import NATS_PER_UNIT


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """One stream over all lists; scores in nats, as they were read."""

    name: str
    lists: int
    minimum: float
    maximum: float
    per_word: float
    """Sum of all scores over the sum of all words, ``</s>`` counted as one."""
    spread: float
    """Mean over the lists of best minus worst score."""
    whole_numbers: bool
    """No score has decimals."""
    compared: int
    """Lists whose scores are not all one value; the next three are counts of these."""
    first_is_best: int
    descending: int
    """Lists in which no score is higher than the one before."""
    ascending: int
    """Lists in which no score is lower than the one before: sorted the wrong way."""
    length_correlation: float | None
    """Pearson's r of score and words over all hypotheses."""
    error_correlation: float | None
    """Mean over the lists of Pearson's r of score and errors; good scores go with few errors: below 0."""
    error_t: float | None
    """That mean over its standard error."""

    def per_word_as(self, base: str, sign: float = 1.0) -> float:
        """Nats a word, were the numbers as they stand of another base or, with sign -1, costs."""
        return self.per_word * NATS_PER_UNIT[base] * sign

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "per_word_if_log10": self.per_word_as("10"),
            "per_word_if_log2": self.per_word_as("2"),
            "per_word_if_cost": self.per_word_as("e", -1.0),
        }


class StreamTally:
    """Adds up one stream, list by list."""

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
        """One list: (H,) scores, words without ``</s>``, and errors where there is a reference."""
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
        with np.errstate(over="ignore", invalid="ignore"):  # absurd scores have no correlation
            self._moments += rows @ rows.T
        if errors is not None and (r := correlation(scores, errors)) is not None:
            self._correlations.append(r)

    def facts(self) -> StreamFacts:
        mean, t = mean_and_t(self._correlations)
        return StreamFacts(
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
            length_correlation=_correlation_of_moments(self._moments),
            error_correlation=mean,
            error_t=t,
        )


def correlation(left: np.ndarray, right: np.ndarray) -> float | None:
    """Pearson's r; None where one side does not vary."""
    if not (np.ptp(left) > 0 and np.ptp(right) > 0):
        return None  # asked before the mean is taken off, whose rounding looks like variation
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = left - left.mean(), right - right.mean()
        x, y = (each / peak if (peak := np.abs(each).max()) > 0 else each for each in (x, y))
        scale = math.sqrt(float(x @ x) * float(y @ y))
        r = float(x @ y) / scale if scale > 0 else math.nan
    return max(-1.0, min(1.0, r)) if math.isfinite(r) else None


def _correlation_of_moments(moments: np.ndarray) -> float | None:
    n = moments[0, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        covariance = moments / n - np.outer(moments[0], moments[0]) / n**2
        scale = math.sqrt(max(0.0, float(covariance[1, 1])) * max(0.0, float(covariance[2, 2])))
        r = float(covariance[1, 2]) / scale if scale > 0 and math.isfinite(scale) else math.nan
    return max(-1.0, min(1.0, r)) if math.isfinite(r) else None


def mean_and_t(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean, and that over its standard error; None where there are too few values, or all are one."""
    if len(values) < 2:
        return (values[0] if values else None), None
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    return mean, mean / (deviation / math.sqrt(len(values))) if deviation > 0 else None
