"""Nested cross-validation: what is held out has no influence, and chance changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rescorer.evaluation.folds import make_folds
from rescorer.evaluation.tuning import (
    choose_method,
    cross_validate_problem,
    find_flat_directions,
    fit_all,
    judge,
)
from rescorer.evaluation.weight_search import METHODS, Fitter, make_problem
from tests.support.tuning_problems import UNBOUNDED, count_one_by_one, pairs


def many(n: int, gain: float = 0.5, seed: int = 0):
    """Lists of five hypotheses in which a language model helps as much as ``gain`` says."""
    random = np.random.default_rng(seed)
    errors = random.poisson(2, size=5 * n)
    components = random.normal(size=(3, 5 * n)) - np.outer([0.5, gain, 0.0], errors)
    return make_problem(
        ["am", "lm", "word"], components, errors, [5] * n, [1.0, 0.0, 0.0], [(1, 1), (0, np.inf), UNBOUNDED]
    )


def folds_of(n: int):
    ids = [str(i) for i in range(n)]
    return make_folds(ids, [""] * n, ids)


def test_judges_each_list_by_weights_that_it_did_not_make():
    problem, folds = many(40), folds_of(40)
    result = cross_validate_problem(problem, folds)
    assert sorted(np.concatenate([fold.lists for fold in result.folds])) == [*range(40)]
    for number, fold in enumerate(result.folds):
        tuning, held_out = folds.split(number)
        assert (fold.lists == held_out).all()
        expected = Fitter(problem.select(tuning)).fit(fold.method)
        assert (expected.weights == fold.solution.weights).all()
        judged = problem.select(held_out)
        assert result.errors[held_out].sum() == count_one_by_one(judged, fold.solution.weights)
    assert (result.start_errors == problem.list_errors(problem.start)).all()


def test_held_out_errors_do_not_influence_their_weights():
    problem, folds = many(30), folds_of(30)
    _, held_out = folds.split(0)
    changed = problem.errors.copy().reshape(30, 5)
    changed[held_out] = 9 - changed[held_out].clip(max=9)
    other = replace(problem, errors=changed.ravel())
    first, second = (cross_validate_problem(p, folds).folds for p in (problem, other))
    assert first[0].method == second[0].method
    assert (first[0].solution.weights == second[0].solution.weights).all()
    assert any((a.solution.weights != b.solution.weights).any() for a, b in zip(first, second, strict=True))


def test_a_clear_gain_changes_the_weights_and_noise_does_not():
    words = np.full(120, 10)
    for gain, is_better in ((1.0, True), (0.0, False)):
        problem, folds = many(120, gain), folds_of(120)
        result = cross_validate_problem(problem, folds)
        judgement = judge(result.start_errors, result.errors, words, [""] * 120)
        assert judgement.is_better == is_better
        assert judgement.explain().startswith("tuned weights gain" if is_better else "the start is kept")
        if is_better:
            assert judgement.n_lists_needed < 120


def test_a_bolder_method_must_save_more_than_chance():
    folds = folds_of(60)
    chosen = [choose_method(many(60, 0.0, seed), folds).objective for seed in range(10)]
    assert chosen.count("start") >= 6
    assert choose_method(many(60, 1.0), folds).objective != "start"


def test_the_number_of_lists_that_would_show_a_gain():
    """A gain of one standard error needs (1.96 + 0.84)² times as many lists for a power of 80 %."""
    random = np.random.default_rng(0)
    n = 2000
    start = random.poisson(3, n)
    change = random.choice([-1, 0, 1], size=n, p=[0.11, 0.8, 0.09])
    judgement = judge(start, start + change, np.full(n, 10), [""] * n)
    standard_error = change.std() / 10 / np.sqrt(n)
    expected = n * (2.8 * standard_error / judgement.gain.gain) ** 2
    assert judgement.n_lists_needed == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([0, 0, 0, 0], "choose hypotheses with as many errors"),
        ([1, 0, 0, 0], "lose 2.50 points"),
        ([-1, 0, 0, 0], "may be chance, because only 2 lists differ, and an interval or a test needs at"),
        ([-1, -1, 1, 0], "may be chance, because the lower bound is"),
    ],
)
def test_says_why_the_start_is_kept(changes, reason):
    start = np.full(8, 2)
    judgement = judge(start, start + np.tile(changes, 2), np.full(8, 10), [""] * 8)
    assert not judgement.is_better
    assert judgement.explain().startswith("the start is kept: ")
    assert reason in judgement.explain()
    assert judgement.explain(force=True).startswith("the start is not kept, because of --force: ")


def test_the_most_cautious_of_equally_good_methods_is_chosen():
    method, solution = fit_all(pairs(*[(1.0, (0, 1))] * 8), folds_of(8))
    assert method == METHODS[0]
    assert solution.weights.tolist() == [1.0, 0.0]


def test_flat_directions_hold_equally_good_weights():
    problem = many(60)
    solution = Fitter(problem).fit(METHODS[1])
    alone, flattest = find_flat_directions(problem, solution)
    errors = problem.list_errors(solution.weights)
    for direction in [*alone, flattest]:
        for end in ({name: ends[k] for name, ends in direction.ranges.items()} for k in (0, 1)):
            weights = np.array(
                [end.get(name, w) for name, w in zip(problem.names, solution.weights, strict=True)]
            )
            change = problem.list_errors(weights) - errors
            assert change.sum() <= 1.96 * np.sqrt((change**2).sum()) + 1e-9 or direction is flattest
    assert list(alone[0].ranges) == ["lm"]
    low, high = alone[0].ranges["lm"]
    assert low < solution.weights[1] < high
    assert " to " in flattest.describe()


def test_the_flattest_direction_of_two_weights_of_one_component():
    """If two components are equal, only the sum of their weights matters."""
    problem = many(60)
    components = problem.components[[0, 1, 1]]
    double = make_problem(
        ["am", "lm", "other"], components, problem.errors, [5] * 60, [1.0, 0.3, 0.3],
        [(1, 1), UNBOUNDED, UNBOUNDED],
    )  # fmt: skip
    _, flattest = find_flat_directions(double, Fitter(double).fit(METHODS[1]))
    move = {name: high - low for name, (low, high) in flattest.ranges.items()}
    assert move["lm"] == pytest.approx(-move["other"], rel=0.05)


def test_as_many_errors_in_other_places_are_no_loss():
    start = np.full(40, 2)
    change = np.tile([1, -1], 20)
    judgement = judge(start, start + change, np.full(40, 10), [""] * 40)
    assert judgement.explain() == (
        "the start is kept: held out, the tuned weights choose hypotheses with as many errors"
    )


@pytest.mark.parametrize(
    ("changes", "for_test", "sentence"),
    [
        ([0, 0, 0, 0], None, "is not known, because there is no gain held out"),
        ([-1, 0, 0, 0], 24, "because only 2 lists differ, and an interval or a test needs at least 6: with "
         "about 24 lists as many can be expected to differ; these are 8"),
        ([-1, -1, -1, -1], None, "because all lists that differ do so by the same rate"),
    ],
)  # fmt: skip
def test_says_why_the_number_of_lists_for_a_gain_is_not_known(changes, for_test, sentence):
    start = np.full(8, 2)
    judgement = judge(start, start + np.tile(changes, 2), np.full(8, 10), [""] * 8)
    assert judgement.n_lists_needed is None
    assert judgement.n_lists_for_test == for_test
    assert sentence in judgement.describe_lists_needed()
    assert judgement.describe_lists_needed() in judgement.caveats()
