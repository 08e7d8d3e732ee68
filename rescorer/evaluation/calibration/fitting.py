"""Fit maps from posteriors to confidences: a constant, a temperature, or a temperature and isotonic
regression.

The temperature maximises the likelihood of what was right (Guo et al. 2017). Isotonic regression (Zadrozny
& Elkan 2002) then bends the map, on bins of at least ``MIN_BIN_CLAIMS`` claims and with one claim's worth
of the overall share in each, so that no handful of lists makes a confidence 0 or 1. Cross-validation
chooses among the three, because small sets do not carry a curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rescorer.decision.confidence import apply_map
from rescorer.evaluation.calibration.measures import log_loss
from rescorer.evaluation.calibration.outcomes import TEMPERATURES, Outcomes
from rescorer.types import ConfidenceMap

MAX_BINS = 20
MIN_BIN_CLAIMS = 20
"""Least average number of claims in the bins of isotonic regression."""
MAX_INNER_FOLDS = 5
"""Number of folds, made of the outer ones, by which the kind of map is chosen."""


def fit_constant(outcomes: Outcomes) -> ConfidenceMap:
    """Give every claim the share that is right; half a claim is added to right and wrong ones."""
    return ConfidenceMap(1.0, (0.5,), (_share_right(outcomes),))


def fit_temperature(outcomes: Outcomes) -> ConfidenceMap:
    """Give every claim its posterior at the temperature of maximum likelihood, away from 0 and 1."""
    least = 1.0 / (len(outcomes) + 2)
    losses = log_loss(np.clip(outcomes.posteriors, least, 1.0 - least), outcomes.correct).sum(axis=1)
    ends = (least, 1.0 - least)
    return ConfidenceMap(float(TEMPERATURES[np.argmin(losses)]), ends, ends)


def fit_isotonic(outcomes: Outcomes) -> ConfidenceMap:
    """Give every claim the share that is right among claims of about its posterior, without descending."""
    from scipy.optimize import (
        isotonic_regression,  # takes a second to load, and programs that serve never fit
    )

    temperature = fit_temperature(outcomes).temperature
    posteriors = outcomes.at(temperature)
    n_bins = int(np.clip(len(outcomes) // MIN_BIN_CLAIMS, 1, MAX_BINS))
    # equal posteriors share a bin: often most words are in all hypotheses and have the posterior 1
    position = np.searchsorted(np.sort(posteriors), posteriors)
    _, index, claims = np.unique(position * n_bins // len(position), return_inverse=True, return_counts=True)
    means = np.bincount(index, posteriors) / claims
    shares = (np.bincount(index, outcomes.correct) + _share_right(outcomes)) / (claims + 1)
    confidences = isotonic_regression(shares, weights=claims + 1.0).x
    changes = np.diff(confidences) != 0  # of a run of equal confidences, the first and the last point remain
    is_end = np.concatenate([[True], changes]) | np.concatenate([changes, [True]])
    return ConfidenceMap(temperature, tuple(means[is_end].tolist()), tuple(confidences[is_end].tolist()))


def _share_right(outcomes: Outcomes) -> float:
    return float((outcomes.correct.sum() + 0.5) / (len(outcomes) + 1))


CONSTANT = "constant"
KINDS: Mapping[str, Callable[[Outcomes], ConfidenceMap]] = MappingProxyType(
    {CONSTANT: fit_constant, "temperature": fit_temperature, "isotonic": fit_isotonic}
)
"""The ways to fit a map by name, the simplest first."""


@dataclass(frozen=True, slots=True)
class Division:
    """Which lists may fit the map that judges a list."""

    folds: Sequence[str]
    """(L,) fold of each list."""
    references: Sequence[str]
    """(L,) reference of each list; no list is judged by a map that the same reference helped to fit."""

    def held_out(self, fold: str) -> np.ndarray:
        """The lists of a fold, (L,) bool."""
        return np.array([name == fold for name in self.folds])

    def training(self, fold: str) -> np.ndarray:
        """The lists that may fit the map for a fold, (L,) bool."""
        known = {ref for name, ref in zip(self.folds, self.references, strict=True) if name == fold}
        pairs = zip(self.folds, self.references, strict=True)
        return np.array([name != fold and ref not in known for name, ref in pairs])

    def merge(self, n_folds: int) -> Division:
        """Put the folds together to at most ``n_folds``."""
        numbers = {name: f"{index % n_folds}" for index, name in enumerate(sorted(set(self.folds)))}
        return Division([numbers[name] for name in self.folds], self.references)


def predict_held_out(
    outcomes: Outcomes, division: Division, fit: Callable[[Outcomes], ConfidenceMap]
) -> np.ndarray:
    """Give each claim the confidence of a map that was fitted without its fold.

    Args:
        fit: fits a map to the claims about the lists of other folds.

    Returns:
        (N,) float64; NaN where no list may fit the map.
    """
    confidences = np.full(len(outcomes), np.nan)
    for fold in sorted(set(division.folds)):
        known, held_out = (
            outcomes.select(division.training(fold)),
            division.held_out(fold)[outcomes.list_index],
        )
        if len(known) and held_out.any():
            fitted = fit(known)
            confidences[held_out] = apply_map(fitted, outcomes.at(fitted.temperature)[held_out])
    return confidences


def choose_kind(outcomes: Outcomes, division: Division) -> str:
    """Find the kind of map with the smallest cross entropy on lists that did not fit it.

    Of kinds that are equally good, the simplest is taken; if nothing can be held out, a constant.
    """
    inner = division.merge(MAX_INNER_FOLDS)
    losses = {}
    for name, fit in KINDS.items():
        confidences = predict_held_out(outcomes, inner, fit)
        judged = ~np.isnan(confidences)
        losses[name] = float(log_loss(confidences[judged], outcomes.correct[judged]).sum())
    return min(losses, key=losses.__getitem__)
