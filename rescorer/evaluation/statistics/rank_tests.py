"""Sign test and Wilcoxon's signed-rank test over speakers or lists, as NIST's ``sc_stats`` does them.

Both look at which system is better on each speaker, and need no assumption about the distribution of the
differences. They weigh a speaker with two utterances like one with a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.statistics.distributions import binomial_cdf, normal_tail

EQUAL_POINTS = 0.005
"""Error rates that differ by at most so many percentage points are equal."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """Result of a test over speakers or lists."""

    better: int
    """Number on which the second system has the lower error rate."""
    worse: int
    equal: int
    p_value: float
    """Two-sided."""


def sign_test(baseline: Sequence[float] | np.ndarray, system: Sequence[float] | np.ndarray) -> RankTest:
    """Test by the number of speakers on which a system is better: exact binomial test.

    Half of the equal speakers count as better and half as worse; an odd one counts for the system with the
    higher mean rate. For more than 20 speakers, ``sc_stats`` uses a normal approximation that halves the
    smaller number once too often, and so calls nearly every difference significant; this test is always
    exact.

    Args:
        baseline, system: (N,) error rates, as shares, of each speaker or list.

    Raises:
        ValueError: the lengths differ.
    """
    points = _differences(baseline, system)
    better, worse, equal = _count(points)
    n_for, n_against = (better, worse) if points.sum() > 0 else (worse, better)
    smaller = min(n_for + equal // 2, n_against + equal - equal // 2)
    p_value = min(2 * binomial_cdf(smaller, len(points), 0.5), 1.0) if len(points) else 1.0
    return RankTest(better, worse, equal, p_value)


def wilcoxon(baseline: Sequence[float] | np.ndarray, system: Sequence[float] | np.ndarray) -> RankTest:
    """Test by the ranks of the absolute differences: normal approximation, without correction for ties.

    Equal speakers take part in the ranking, and the ranks of half of them count for either system.

    Args:
        baseline, system: (N,) error rates, as shares, of each speaker or list; 8 or more, so that the normal
            approximation holds.

    Raises:
        ValueError: the lengths differ.
    """
    points = _differences(baseline, system)
    better, worse, equal = _count(points)
    n = len(points)
    if not n:
        return RankTest(0, 0, 0, 1.0)
    ranks = _rank(np.abs(points))
    is_equal = np.abs(points) <= EQUAL_POINTS
    shared = np.flatnonzero(is_equal)[0 if points.sum() > 0 else 1 :: 2]
    rank_sum = ranks[(points > 0) & ~is_equal].sum() + ranks[shared].sum()
    z = (rank_sum - n * (n + 1) / 4) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return RankTest(better, worse, equal, 2 * normal_tail(abs(z)))


def _differences(baseline: Sequence[float] | np.ndarray, system: Sequence[float] | np.ndarray) -> np.ndarray:
    """By how many percentage points the system is better, (N,)."""
    first, second = np.asarray(baseline, dtype=np.float64), np.asarray(system, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} rates of one system, but {len(second)} of the other")
    return np.asarray(100 * first - 100 * second)


def _rank(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, (N,) float64; equal values have the mean of theirs."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[index])


def _count(points: np.ndarray) -> tuple[int, int, int]:
    """Numbers of speakers on which the system is better, worse and equal."""
    better, worse = int(np.sum(points > EQUAL_POINTS)), int(np.sum(points < -EQUAL_POINTS))
    return better, worse, len(points) - better - worse
