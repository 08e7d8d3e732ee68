"""Judge the confidences of lists by maps that other lists have fitted, and keep only the maps that help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescorer.evaluation.calibration.fitting import CONSTANT, KINDS, Division, choose_kind, predict_held_out
from rescorer.evaluation.calibration.measures import (
    ReliabilityBin,
    expected_calibration_error,
    log_loss,
    normalised_cross_entropy,
    reliability,
)
from rescorer.evaluation.calibration.outcomes import Outcomes
from rescorer.evaluation.statistics.bootstrap import Gain, bootstrap, choose_units
from rescorer.types import ConfidenceMap

MAX_FOLDS = 10
"""Number of folds, made of whole groups, by which confidences are judged."""
SURE = 0.9
"""Confidence from which a claim counts as sure."""


@dataclass(frozen=True, slots=True)
class Measures:
    """How well some confidences say what is right."""

    expected_calibration_error: float
    normalised_cross_entropy: float
    """NaN if all claims are right or all are wrong."""
    sure: int
    """Number of claims with a confidence of at least ``SURE``."""
    sure_and_right: int
    bins: tuple[ReliabilityBin, ...]

    @classmethod
    def measure(cls, confidences: np.ndarray, correct: np.ndarray) -> Measures:
        sure = confidences >= SURE
        return cls(
            expected_calibration_error(confidences, correct),
            normalised_cross_entropy(confidences, correct),
            int(sure.sum()),
            int((sure & correct).sum()),
            tuple(reliability(confidences, correct)),
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """A map for one kind of claim, and what it does on lists that did not fit it."""

    claims: int
    right: int
    """Number of claims that are right."""
    before: Measures
    """Measures of the posteriors at temperature 1."""
    held_out: Measures
    """Measures of confidences by maps that were fitted, and whose kind was chosen, without the fold of the
    claim."""
    gain: Gain
    """By how many nats per claim the held-out confidences are better than a constant that other folds
    give."""
    kind: str
    """Kind of the map that all lists together fit; see ``fitting.KINDS``."""
    fitted: ConfidenceMap
    """The map itself."""

    @property
    def helps(self) -> bool:
        """Whether the confidences say more than how many claims are right, beyond chance."""
        return self.kind != CONSTANT and self.gain.lower_bound > 0


def judge(outcomes: Outcomes, division: Division, groups: Sequence[str]) -> Judgement | None:
    """Fit a map to all claims, and judge the way it was fitted by cross-validation.

    Args:
        groups: (L,) speaker or other group of each list, which the interval of the gain draws as a whole;
            an empty string for a list without one.

    Returns:
        None if there is no claim, or no list may judge another.
    """
    division = division.merge(MAX_FOLDS)

    def fit(known: Outcomes) -> ConfidenceMap:
        return KINDS[choose_kind(known, division)](known)

    confidences = predict_held_out(outcomes, division, fit)
    constant = predict_held_out(outcomes, division, KINDS[CONSTANT])
    judged = ~np.isnan(confidences)
    if not judged.any():
        return None
    correct, index, n_lists = outcomes.correct[judged], outcomes.list_index[judged], len(division.folds)
    losses = [
        np.bincount(index, log_loss(values[judged], correct), n_lists) for values in (constant, confidences)
    ]
    drawn = bootstrap(np.array(losses), np.bincount(index, minlength=n_lists), choose_units(groups))
    kind = choose_kind(outcomes, division)
    return Judgement(
        len(correct),
        int(correct.sum()),
        Measures.measure(outcomes.at(1.0)[judged], correct),
        Measures.measure(confidences[judged], correct),
        drawn.gain(0, 1),
        kind,
        KINDS[kind](outcomes),
    )


def replace_nan(content: Any) -> Any:
    """Return plain data with None in place of numbers that JSON does not have, NaN and infinity."""
    if isinstance(content, dict):
        return {key: replace_nan(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [replace_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
