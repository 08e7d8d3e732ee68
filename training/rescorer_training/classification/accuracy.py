"""Measure predictions of labels: accuracy, recall and precision, confusions, and paired comparisons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.statistics.proportions import wilson_interval

LENGTH_BOUNDS = (1, 2, 4, 7, 11, 16, 26)
"""Smallest number of words of each group of lengths."""


@dataclass(frozen=True)
class Accuracy:
    """What a classifier predicted for labelled sentences."""

    labels: tuple[str, ...]
    truth: np.ndarray
    """(S,) number of the label of each sentence."""
    predicted: np.ndarray
    """(S,) number of the predicted label."""
    n_words: np.ndarray
    """(S,) number of words of each sentence."""

    @property
    def is_correct(self) -> np.ndarray:
        """(S,) bool."""
        return np.asarray(self.truth == self.predicted)

    @property
    def share(self) -> float:
        """Share of correct predictions."""
        return float(self.is_correct.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of 95 % of the share; see ``wilson_interval``."""
        return wilson_interval(int(self.is_correct.sum()), len(self.truth))

    @property
    def confusions(self) -> np.ndarray:
        """Number of sentences of each class (row) that were predicted as each class (column), (C, C)."""
        n = len(self.labels)
        return np.bincount(self.truth * n + self.predicted, minlength=n * n).reshape(n, n)

    def recall(self) -> list[float | None]:
        """Share of the sentences of each class that are predicted as such; None without sentences."""
        return _ratios(self.confusions.diagonal(), self.confusions.sum(axis=1))

    def precision(self) -> list[float | None]:
        """Share of the predictions of each class that are correct; None without predictions."""
        return _ratios(self.confusions.diagonal(), self.confusions.sum(axis=0))

    def by_length(self) -> dict[str, tuple[int, float]]:
        """Number of sentences and share of correct predictions, by number of words."""
        groups: dict[str, tuple[int, float]] = {}
        group = np.searchsorted(LENGTH_BOUNDS, self.n_words, side="right") - 1
        for number, least in enumerate(LENGTH_BOUNDS):
            chosen = self.is_correct[group == number]
            if len(chosen):
                groups[_name_lengths(number, least)] = (len(chosen), float(chosen.mean()))
        return groups


def _name_lengths(number: int, least: int) -> str:
    if number + 1 == len(LENGTH_BOUNDS):
        return f"{least} or more"
    most = LENGTH_BOUNDS[number + 1] - 1
    return f"{least}" if most == least else f"{least} to {most}"


def _ratios(parts: np.ndarray, wholes: np.ndarray) -> list[float | None]:
    return [float(part / whole) if whole else None for part, whole in zip(parts, wholes, strict=True)]
