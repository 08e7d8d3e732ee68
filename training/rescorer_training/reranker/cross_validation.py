"""Nested cross-validation of rerankers: choose a candidate inside each fold, and count errors outside.

No list is ranked by a reranker, or by a choice among candidates, that it helped to make (Varma and Simon,
2006, "Bias in error estimation when using cross-validation for model selection").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.evaluation.tuning.folds import N_FOLDS, Folds
from rescorer.evaluation.tuning.nested import is_as_good
from rescorer_training.progress import track
from rescorer_training.reranker.arrays import TrainingArrays
from rescorer_training.reranker.candidates import Candidate, Choice, average
from rescorer_training.reranker.fitting import Fitted, Fitter
from rescorer_training.reranker.prior_lists import PriorLists

OnProgress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Scores of each list by a reranker that was chosen and trained without it."""

    chosen: tuple[Choice, ...]
    """What was chosen in each fold."""
    scores: np.ndarray
    """(H,) float64."""
    errors: np.ndarray
    """(L,) int64, errors of the first-ranked hypothesis of each list."""


class NestedTraining:
    """Train and judge candidates on the same lists.

    Args:
        feature_sets: features of each set, by its name.
        candidates: the most cautious first.
        seed: of the hidden units of perceptrons, and of transformers.
        prior_lists: lists of another kind, for candidates that take their prior from them. Those that share
            an id, a group or a reference with held-out lists are left out.
    """

    def __init__(
        self,
        arrays: TrainingArrays,
        folds: Folds,
        feature_sets: Mapping[str, Sequence[str]],
        candidates: Sequence[Candidate],
        seed: int = 0,
        prior_lists: PriorLists | None = None,
    ) -> None:
        self.arrays, self.folds, self.seed, self.prior_lists = arrays, folds, seed, prior_lists
        self.feature_sets, self.candidates = feature_sets, candidates

    def cross_validate(self) -> CrossValidation:
        """Hold out each fold in turn: choose and train a candidate on the others, score the fold."""
        with track("cross-validating", "folds", self.folds.n_folds * N_FOLDS) as task:
            return self._hold_out(self.folds, lambda lists: self.choose(lists, task.advance))

    def cross_validate_candidate(self, candidate: Choice, without: Sequence[str] = ()) -> CrossValidation:
        """Hold out each fold in turn and train one candidate on the others.

        The errors are optimistic if the candidate was chosen on the same lists.

        Args:
            without: features to leave out.
        """
        return self._hold_out(self.folds, lambda _: candidate, without)

    def choose(self, lists: np.ndarray, on_fold: OnProgress | None = None) -> Choice:
        """Choose candidates that are as good as the best one on held-out folds of some lists, within one
        standard error.

        If all candidates are linear, which is so with few lists, these are averaged: what chance decides
        among them costs more than it gains (Breiman, 1996, "Stacked regressions"). Otherwise the most
        cautious one is chosen.

        Args:
            on_fold: called after each of these folds.
        """
        folds = self.folds.subdivide(lists)
        if folds.n_folds < 2:
            return self.candidates[0]
        arrays = self.arrays.select(lists)
        errors = np.zeros((len(self.candidates), len(lists)), dtype=np.int64)
        for fold in range(folds.n_folds):
            training, held_out = folds.split(fold)
            if len(training):
                fitter, judged = self._fitter(lists[training]), arrays.select(held_out)
                errors[:, held_out] = [
                    judged.list_errors(fitter.fit(candidate).score(judged)) for candidate in self.candidates
                ]
            if on_fold:
                on_fold()
        as_good = np.flatnonzero(is_as_good(errors, folds.unit)).tolist()
        if not all(candidate.is_linear for candidate in self.candidates):
            return self.candidates[as_good[0]]
        return average([self.candidates[index] for index in as_good])

    def fit_all(self, candidate: Choice) -> Fitted:
        """Fit a candidate on all lists."""
        return self._fitter(np.arange(self.arrays.n_lists)).fit(candidate)

    def fit_folds(self, candidate: Choice) -> list[Fitted]:
        """Fit a candidate without each fold in turn."""
        parts = (self.folds.split(fold)[0] for fold in range(self.folds.n_folds))
        return [self._fitter(lists).fit(candidate) for lists in parts]

    def _fitter(self, lists: np.ndarray, without: Sequence[str] = ()) -> Fitter:
        """Prepare to fit candidates on some lists."""
        arrays, folds = self.arrays.select(lists), self.folds.subdivide(lists)
        prior = None
        if self.prior_lists and (prior_arrays := self.prior_lists.select(lists)):
            prior = Fitter(prior_arrays, folds, _leave_out(self.prior_lists.feature_sets, without), self.seed)
        return Fitter(arrays, folds, _leave_out(self.feature_sets, without), self.seed, prior)

    def _hold_out(
        self, folds: Folds, choose: Callable[[np.ndarray], Choice], without: Sequence[str] = ()
    ) -> CrossValidation:
        arrays = self.arrays
        scores, chosen = np.zeros(len(arrays.errors)), []
        for fold in range(folds.n_folds):
            training, held_out = folds.split(fold)
            if not len(training):
                raise ConfigError(
                    "no lists are left to train on without one of the folds: all others share a reference "
                    "with it"
                )
            candidate = choose(training)
            fitted = self._fitter(training, without).fit(candidate)
            is_held_out = np.repeat(np.isin(np.arange(arrays.n_lists), held_out), np.diff(arrays.offsets))
            scores[is_held_out] = fitted.score(arrays.select(held_out))
            chosen.append(candidate)
        return CrossValidation(tuple(chosen), scores, arrays.list_errors(scores))


def _leave_out(feature_sets: Mapping[str, Sequence[str]], without: Sequence[str]) -> Mapping[str, list[str]]:
    return {
        name: [part for part in features if part not in without] for name, features in feature_sets.items()
    }
