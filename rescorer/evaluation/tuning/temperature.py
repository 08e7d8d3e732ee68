"""Choose the temperature of minimum Bayes risk, whose posteriors depend on the scale of the totals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.decision.bayes_risk import fewest_errors_first
from rescorer.decision.distances import distance_matrix
from rescorer.errors import LimitExceeded
from rescorer.ranking import posteriors
from rescorer.trie import Words
from rescorer.types import ErrorUnit

TEMPERATURES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Temperatures to choose from, besides that of the start."""
MAX_DISTANCES = 1 << 28
"""Largest number of distances to keep, over all lists: 512 MiB."""


class BayesRiskErrors:
    """Count the errors of minimum Bayes risk under many weights; distances are computed once.

    Args:
        words: canonical words of each hypothesis of each list.
        errors: (N,) of each list.
        unit: what the expected errors count.
    """

    def __init__(
        self, words: Sequence[Sequence[Words]], errors: Sequence[np.ndarray], unit: ErrorUnit = "word"
    ) -> None:
        self._words, self._errors, self._unit = words, errors, unit
        self._distances: dict[int, np.ndarray | None] = {}
        self._n_kept = 0

    def count(
        self, index: int, totals: np.ndarray, temperatures: Sequence[float] = TEMPERATURES
    ) -> np.ndarray:
        """Errors of the choice from list ``index`` at each temperature, (T,) int64.

        A list that is too long to be compared keeps its largest total.
        """
        errors, distances = self._errors[index], self._find_distances(index)
        if distances is None:
            return np.full(len(temperatures), errors[np.argmax(totals)])
        expected = (distances @ posteriors(totals, temperature) for temperature in temperatures)
        return np.array([errors[fewest_errors_first(risks, totals)[0]] for risks in expected])

    def _find_distances(self, index: int) -> np.ndarray | None:
        if index in self._distances:
            return self._distances[index]
        distances: np.ndarray | None
        try:
            distances = distance_matrix(self._words[index], self._unit).astype(np.uint16)
        except LimitExceeded:
            distances = None
        size = 0 if distances is None else distances.size
        if self._n_kept + size <= MAX_DISTANCES:
            self._n_kept += size
            self._distances[index] = distances
        return distances
