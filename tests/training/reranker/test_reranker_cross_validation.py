"""Held-out scores of rerankers: no list influences its own; empty hypotheses are left out if that helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rescorer.evaluation.folds import make_folds
from rescorer_training.reranker.arrays import (
    START,
    START_EMPTY_OUT,
    Average,
    Candidate,
    average,
    make_arrays,
    make_candidates,
)
from rescorer_training.reranker.fitting import NestedTraining, is_better_without_empty

N_LISTS, LENGTH = 24, 4
SETS = {START: ("total",), START_EMPTY_OUT: ("total", "empty"), "all": ("total", "empty", "a", "b")}


def make_training(empty_errors: int | None = None) -> NestedTraining:
    """Random lists of 8 groups; the last hypothesis of each list is empty if its errors are given."""
    random = np.random.default_rng(0)
    errors = [random.integers(0, 5, LENGTH) for _ in range(N_LISTS)]
    empty = [np.zeros(LENGTH, dtype=bool) for _ in range(N_LISTS)]
    matrices = []
    for list_errors, flags in zip(errors, empty, strict=True):
        matrix = random.normal(size=(LENGTH, 4))
        matrix[:, 1] = 0.0
        matrix[:, 2] -= 0.5 * list_errors
        if empty_errors is not None:
            list_errors[-1], flags[-1] = empty_errors, True
            matrix[-1] = (0.5, 1.0, 9.0, 9.0)  # language models like empty hypotheses
        matrices.append(matrix)
    groups = [f"g{number % 8}" for number in range(N_LISTS)]
    ids = [str(number) for number in range(N_LISTS)]
    arrays = make_arrays(SETS["all"], matrices, errors, empty)
    return NestedTraining(arrays, make_folds(ids, groups, ids), SETS, make_candidates(SETS, 500))


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("all", "expected errors"),
        Candidate("all", n_hidden=2, members=2),
        Candidate("all", n_layers=1),
    ],
)
def test_scores_of_a_fold_do_not_depend_on_its_errors(candidate):
    training = make_training()
    is_first = np.repeat(training.folds.fold == 0, LENGTH)
    errors = np.where(is_first, 9.0 - training.arrays.errors, training.arrays.errors)
    other = NestedTraining(replace(training.arrays, errors=errors), training.folds, SETS, ())
    before, after = (part.cross_validate_candidate(candidate).scores for part in (training, other))
    np.testing.assert_array_equal(before[is_first], after[is_first])
    assert not np.allclose(before[~is_first], after[~is_first])


def test_nested_scores_of_a_fold_do_not_depend_on_its_errors():
    training = make_training()
    is_first = np.repeat(training.folds.fold == 0, LENGTH)
    errors = np.where(is_first, 9.0 - training.arrays.errors, training.arrays.errors)
    candidates = training.candidates[:10:4]
    changed = replace(training.arrays, errors=errors)
    before, after = (
        NestedTraining(arrays, training.folds, SETS, candidates).cross_validate()
        for arrays in (training.arrays, changed)
    )
    assert before.chosen[0] == after.chosen[0]
    np.testing.assert_array_equal(before.scores[is_first], after.scores[is_first])


def test_an_average_scores_like_the_mean_of_its_candidates():
    training = make_training()
    parts = [Candidate(START), Candidate("all", "pairwise"), Candidate("all", "expected errors", 3.0)]
    scores = [training.fit_all(part).score(training.arrays) for part in parts]
    averaged = training.fit_all(average(parts))
    np.testing.assert_allclose(averaged.score(training.arrays), np.mean(scores, axis=0), atol=1e-12)
    assert average(parts[:1]) == parts[0]


def test_equally_good_linear_candidates_are_averaged():
    training = make_training()
    linear = [candidate for candidate in training.candidates if candidate.is_linear]
    lists = np.arange(N_LISTS)
    one = training.choose(lists)
    assert isinstance(one, Candidate)
    training.candidates = linear
    several = training.choose(lists)
    assert isinstance(several, Average)
    assert several.candidates[0] == one
    assert str(several).startswith(f"average of {len(several.candidates)} linear candidates")


def test_empty_hypotheses_are_left_out_only_where_that_helps():
    worst, best = make_training(empty_errors=9), make_training(empty_errors=0)
    assert is_better_without_empty(worst.arrays)
    assert not is_better_without_empty(best.arrays)
    candidate = Candidate("all", "expected errors")
    for training, chooses_empty in ((worst, False), (best, True)):
        arrays = training.arrays
        chosen = arrays.choose(training.fit_all(candidate).score(arrays))
        assert arrays.empty[chosen].all() == chooses_empty
        assert arrays.empty[chosen].any() == chooses_empty
