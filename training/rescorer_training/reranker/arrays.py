"""The arrays that rerankers are trained on: the features and errors of every hypothesis of every list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.evaluation.weight_search.segments import (
    first_maximum_per_list,
    make_offsets,
    maximum_per_list,
    softmax_per_list,
    spread_over,
)
from rescorer.ranking import TIE_DECIMALS

MIN_SCALE = 1e-9
"""Spread within lists below which a feature counts as constant; larger features are measured relative to
their size."""


@dataclass(frozen=True, slots=True)
class TrainingArrays:
    """L lists with F features per hypothesis; the hypotheses of all lists lie one after the other."""

    features: tuple[str, ...]
    """(F,) names."""
    scales: np.ndarray
    """(F,) float64, above 0, by which the features were divided."""
    x: np.ndarray
    """(H, F) float64, centred in the list and divided by the scales."""
    errors: np.ndarray
    """(H,) float64, errors of each hypothesis, in words or other units."""
    empty: np.ndarray
    """(H,) bool, whether each hypothesis has no words, while another one of its list has some."""
    offsets: np.ndarray
    """(L + 1,) int64, where each list begins."""

    @property
    def n_lists(self) -> int:
        return len(self.offsets) - 1

    def select(self, lists: np.ndarray) -> TrainingArrays:
        """Copy some lists, by their indices."""
        lengths = np.diff(self.offsets)[lists]
        offsets = make_offsets(lengths)
        rows = np.repeat(self.offsets[lists] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return self._select_rows(rows, offsets)

    def drop_empty(self) -> TrainingArrays:
        """Copy the hypotheses that have words, or all of a list if none has."""
        rows = np.flatnonzero(~self.empty)
        return self._select_rows(rows, np.searchsorted(rows, self.offsets))

    def _select_rows(self, rows: np.ndarray, offsets: np.ndarray) -> TrainingArrays:
        return replace(
            self, x=self.x[rows], errors=self.errors[rows], empty=self.empty[rows], offsets=offsets
        )

    def keep_features(self, names: Sequence[str]) -> TrainingArrays:
        """Copy some of the features, in the order of the arrays."""
        columns = [index for index, name in enumerate(self.features) if name in names]
        features = tuple(self.features[index] for index in columns)
        return replace(
            self,
            features=features,
            scales=self.scales[columns],
            x=np.ascontiguousarray(self.x[:, columns]),
        )

    def choose(self, scores: np.ndarray) -> np.ndarray:
        """Position in ``scores`` (H,) of the hypothesis that each list ranks first; ties go to the first."""
        return first_maximum_per_list(np.round(scores, TIE_DECIMALS), self.offsets)

    def list_errors(self, scores: np.ndarray) -> np.ndarray:
        """Errors of the hypothesis that each list ranks first, (L,) int64."""
        return self.errors[self.choose(scores)].astype(np.int64)

    def least_errors(self) -> np.ndarray:
        """Whether each hypothesis has the fewest errors of its list, (H,) bool."""
        least: np.ndarray = -maximum_per_list(-self.errors, self.offsets)
        return self.errors == spread_over(least, self.offsets)

    def spread(self, scores: np.ndarray) -> float:
        """Standard deviation of scores (H,) within lists."""
        return float(_measure(_centre(scores[:, None], self.offsets))[0])

    def claims(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Posterior of the first-ranked hypothesis of each list, (L,) float64, and whether no other one has
        fewer errors, (L,) bool."""
        chosen = self.choose(scores)
        return softmax_per_list(scores, self.offsets)[chosen], self.least_errors()[chosen]


def make_arrays(
    features: Sequence[str],
    matrices: Sequence[np.ndarray],
    errors: Sequence[np.ndarray],
    empty: Sequence[np.ndarray],
) -> TrainingArrays:
    """Centre and scale the features of all lists; leave out those that tell no two hypotheses apart.

    A feature is divided by its standard deviation within lists, for which empty hypotheses do not count if
    others differ. One that is proportional to an earlier one is left out too.

    Args:
        matrices: (H, F) of each list, finite.
        errors: (H,) of each list.
        empty: (H,) of each list, whether a hypothesis has no words.
    """
    offsets = make_offsets(np.array([len(matrix) for matrix in matrices]))
    is_empty = np.concatenate([flags & ~flags.all() for flags in empty])
    raw = np.concatenate(matrices)
    x = _centre(raw, offsets)
    kept_offsets = np.searchsorted(np.flatnonzero(~is_empty), offsets)
    scales, spread = _measure(_centre(raw[~is_empty], kept_offsets)), _measure(x)
    least = MIN_SCALE * np.maximum(np.abs(raw).max(axis=0, initial=0.0), 1.0)
    scales = np.where(scales > least, scales, spread)
    x /= np.where(spread > least, scales, 1.0)
    correlation = (x.T @ x) / np.sqrt(np.outer((x**2).sum(axis=0), (x**2).sum(axis=0)) + 1e-300)
    kept: list[int] = []
    for column in np.flatnonzero(spread > least).tolist():
        if not kept or np.abs(correlation[column, kept]).max() < 1.0 - MIN_SCALE:
            kept.append(column)
    return TrainingArrays(
        tuple(features[column] for column in kept),
        scales[kept],
        np.ascontiguousarray(x[:, kept]),
        np.concatenate(errors).astype(np.float64),
        is_empty,
        offsets,
    )


def _centre(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Subtract the mean of each list, (H, F)."""
    lengths = np.diff(offsets)[:, None]
    means = np.add.reduceat(values, offsets[:-1], axis=0) / lengths
    return values - np.repeat(means, lengths[:, 0], axis=0)


def _measure(centred: np.ndarray) -> np.ndarray:
    """Standard deviation within lists, (F,)."""
    deviation: np.ndarray = np.sqrt((centred**2).mean(axis=0))
    return deviation
