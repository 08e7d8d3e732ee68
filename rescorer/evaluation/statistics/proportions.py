"""Intervals of a share of successes, and the exact test of two shares of the same trials."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.statistics.distributions import binomial_cdf, normal_quantile


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a probability (Wilson 1927), for independent trials.

    >>> [round(bound, 3) for bound in wilson_interval(90, 100)]
    [0.826, 0.945]
    """
    z = normal_quantile((1 - confidence) / 2)
    share, spread = successes / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = abs(z) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Comparison of two systems that answered the same questions."""

    only_first: int
    """Number of questions that only the first system has right."""
    only_second: int
    p_value: float
    """Two-sided, exact."""


def mcnemar(first: np.ndarray, second: np.ndarray) -> PairedTest:
    """Test whether two systems have the same accuracy (McNemar 1947, exact binomial test).

    Args:
        first, second: (N,) bool, whether each answer is correct.

    Raises:
        ValueError: the shapes differ.
    """
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} answers of one system, {len(second)} of the other")
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    fewer, n = min(only_first, only_second), only_first + only_second
    return PairedTest(only_first, only_second, min(1.0, 2 * binomial_cdf(fewer, n, 0.5)) if n else 1.0)
