"""Simulate the errors of two recognisers on the same read speech, with known true error rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MEAN_WORDS = 15.0
LENGTH_SHAPE = 2.0
"""Lengths are gamma distributed and rounded: standard deviation 10.6 words, as in read speech."""
LIST_SHAPE = 1.1
"""Errors per list are negative binomial with variance mean + mean² / shape, as those of a good recogniser."""
GROUP_SHAPE = 4.0
"""Error rates of speakers are gamma distributed, with a standard deviation of half their mean."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated."""

    name: str
    n_lists: int
    n_groups: int | None = None
    """Number of speakers, who differ in error rate; None for lists that are independent of each other."""
    rate: float = 0.08
    """True error rate of the first system."""
    fixed: float = 0.10
    """Share of the first system's errors that the second system does not make."""
    broken: float = 0.05
    """Errors that only the second system makes, as a share of the first system's errors."""

    @property
    def gain(self) -> float:
        """True difference of the error rates."""
        return self.rate * (self.fixed - self.broken)


@dataclass(frozen=True, slots=True)
class ErrorSample:
    """Simulated lists of both systems."""

    errors: np.ndarray
    """(2, L) int64."""
    words: np.ndarray
    """(L,) int64, at least 1."""
    groups: np.ndarray | None
    """(L,) number of the speaker."""


def simulate_errors(scenario: Scenario, generator: np.random.Generator) -> ErrorSample:
    """Draw the lists of one simulated evaluation."""
    n = scenario.n_lists
    lengths = generator.gamma(LENGTH_SHAPE, MEAN_WORDS / LENGTH_SHAPE, n)
    words = np.maximum(np.round(lengths), 1).astype(np.int64)
    expected = scenario.rate * words * generator.gamma(LIST_SHAPE, 1 / LIST_SHAPE, n)
    groups = None
    if scenario.n_groups is not None:
        groups = np.arange(n) % scenario.n_groups
        expected *= generator.gamma(GROUP_SHAPE, 1 / GROUP_SHAPE, scenario.n_groups)[groups]
    first = generator.poisson(expected)
    second = first - generator.binomial(first, scenario.fixed) + generator.poisson(scenario.broken * expected)
    return ErrorSample(np.stack([first, second]), words, groups)
