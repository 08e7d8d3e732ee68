"""Exact line search and weight tuning against brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.evaluation.weight_search import compute_error_curve, make_problem, minimise_errors
from tests.support.tuning_problems import UNBOUNDED, count_one_by_one, pairs, problems


@given(problems(), st.lists(st.floats(-10, 10), max_size=5), st.sampled_from([0, 3, 1000]))
def test_error_curve_matches_brute_force_between_corners(problem, steps, min_candidates):
    intercepts, slopes = problem.components
    curve = compute_error_curve(
        intercepts, slopes, problem.errors, problem.offsets, -10.0, 10.0, min_candidates
    )
    assert (np.diff(curve.corners) > 0).all()
    ends = [-10.0, *curve.corners, 10.0]
    middles = [(left + right) / 2 for left, right in pairwise(ends) if right - left > 1e-6]
    ties = find_crossings(problem)  # where hypotheses are equal, the first wins at that very step
    for step in middles + steps:
        if (np.abs(ties - step) > 1e-3).all():
            assert curve.at(step) == count_one_by_one(problem, [1.0, step])


def find_crossings(problem):
    """Steps at which two hypotheses of a list have equal totals; there need not be a corner."""
    rows = [range(begin, end) for begin, end in pairwise(problem.offsets)]
    crossings = []
    for i, j in (pair for row in rows for pair in combinations(row, 2)):
        intercept, slope = problem.components[:, i] - problem.components[:, j]
        if slope:
            crossings.append(-intercept / slope)
    return np.array(crossings)


def test_error_curve_of_many_long_lists_is_exact():
    """Stretches are halved, and most hypotheses ruled out, without an effect on the result."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 60, size=300)
    n = int(lengths.sum())
    errors = random.poisson(3, size=n)
    problem = make_problem(
        ["a", "b"], random.normal(size=(2, n)), errors, lengths, [1.0, 0.0], [(1, 1), UNBOUNDED]
    )
    curves = [
        compute_error_curve(*problem.components, problem.errors, problem.offsets, -2.0, 2.0, candidates)
        for candidates in (0, 10**9)
    ]
    steps = random.uniform(-2, 2, size=50)
    assert (curves[0].at(steps) == curves[1].at(steps)).all()
    for step in steps[:10]:
        assert curves[0].at(step) == count_one_by_one(problem, [1.0, step])


@given(problems())
def test_tuning_one_weight_is_at_least_as_good_as_a_grid(problem):
    tuned = minimise_errors(problem, strength=0.0)
    unit = problem.units[1]
    grid = problem.start[1] + np.linspace(-1.9, 1.9, 97) * unit
    fewest = min(count_one_by_one(problem, [1.0, value]) for value in grid)
    assert tuned[0] == 1.0
    assert count_one_by_one(problem, tuned) <= fewest


@given(problems(n_weights=3), st.integers(0, 99))
def test_tuning_never_costs_more_than_the_start(problem, seed):
    tuned = minimise_errors(problem, 0.1, seed=seed)
    assert tuned[0] == 1.0
    assert problem.cost(tuned, 0.1) <= problem.cost(problem.start, 0.1)
    assert problem.list_errors(tuned).sum() == count_one_by_one(problem, tuned)
    assert (tuned == minimise_errors(problem, 0.1, seed=seed)).all()


@given(problems(n_weights=3))
def test_keeps_weights_if_moving_does_not_pay(problem):
    tuned = minimise_errors(problem, strength=1e9)
    saved = count_one_by_one(problem, problem.start) - count_one_by_one(problem, tuned)
    assert (tuned == problem.start).all() or saved > 0
    assert np.abs(problem.moves(tuned)).max() < 0.1


@given(problems(n_weights=4))
def test_keeps_bounds_and_fixed_weights(problem):
    bounds = np.array([(1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (-0.6, 0.2)])
    tuned = minimise_errors(replace(problem, bounds=bounds), strength=0.0)
    assert (tuned[0], tuned[2]) == (1.0, 0.0)
    assert 0 <= tuned[1] <= 1
    assert -0.6 <= tuned[3] <= 0.2


def test_takes_the_middle_of_the_best_interval():
    # The second hypothesis wins from weight 1 in the first list and from weight 3 in the other.
    tuned = minimise_errors(pairs((1.0, (1, 0)), (1 / 3, (0, 1))), strength=0.0)
    assert tuned[1] == pytest.approx(2.0)


def test_keeps_the_weight_of_a_constant_component():
    problem = make_problem(
        ["am", "lm"], np.array([[0.0, -1.0], [7.0, 7.0]]), [1, 0], [2], [1.0, 0.3], [(1, 1), UNBOUNDED]
    )
    assert minimise_errors(problem, 0.0).tolist() == [1.0, 0.3]


def test_ties_go_to_the_first_hypothesis():
    components = np.array([[1.0, 1.00001, 1.0]])
    problem = make_problem(["am"], components, [0, 1, 2], [3], [1.0], [UNBOUNDED])
    assert problem.choose(problem.start).tolist() == [0]


@given(problems(n_weights=3), st.data())
def test_selecting_lists_is_like_leaving_out_the_others(problem, data):
    lists = data.draw(st.lists(st.integers(0, problem.n_lists - 1), min_size=1, unique=True))
    part = problem.select(np.array(lists))
    weights = np.array([1.0, -0.7, 0.3])
    assert (part.list_errors(weights) == problem.list_errors(weights)[lists]).all()
    assert (part.units == problem.units).all()


@pytest.mark.parametrize(
    ("lengths", "start", "bounds", "message"),
    [
        ([], [1.0], [UNBOUNDED], "no lists to tune on"),
        ([2, 0], [1.0], [UNBOUNDED], "a list without hypotheses"),
        ([2], [1.0, 0.0], [UNBOUNDED], r"components \(1, 2\).*start \(2,\)"),
        ([2], [0.0], [(1.0, 2.0)], "'?am=0 is outside its bounds 1 to 2"),
    ],
)
def test_rejects_invalid_input(lengths, start, bounds, message):
    n = sum(lengths)
    with pytest.raises(ConfigError, match=message):
        make_problem(["am"], np.zeros((1, n)), [0] * n, lengths, start, bounds)


def test_rejects_scores_that_are_not_finite():
    with pytest.raises(ConfigError, match="the component of 'am' is not finite"):
        make_problem(["am"], np.array([[np.nan, 0.0]]), [0, 1], [2], [1.0], [UNBOUNDED])


@pytest.mark.parametrize(("score", "weight"), [(1e200, 1.0), (1e60, 1e60), (1e200, 0.0)])
def test_rejects_scores_whose_squares_overflow(score, weight):
    with pytest.raises(ConfigError, match=r"the component of 'am' is up to ±1e\+.*expected at most ±1e\+100"):
        make_problem(["am"], np.array([[score, 0.0]]), [0, 1], [2], [weight], [UNBOUNDED])


@given(problems(n_weights=3), st.integers(1, 20))
def test_lists_that_say_nothing_about_a_weight_do_not_change_its_unit(problem, n_added):
    added = np.zeros((3, 2 * n_added))
    added[0, ::2], added[1] = 5.0, 1.0  # the scale differs within these lists, the others do not
    longer = make_problem(
        problem.names,
        np.concatenate([problem.components, added], axis=1),
        np.concatenate([problem.errors, np.zeros(2 * n_added)]),
        [*np.diff(problem.offsets), *[2] * n_added],
        problem.start,
        problem.bounds,
    )
    assert longer.units[1:] == pytest.approx(problem.units[1:])


def test_a_weight_that_acts_in_few_lists_pays_for_a_large_value():
    """One list in 50 has an unknown word: a weight that saves its only error must not be huge."""
    random = np.random.default_rng(1)
    acoustic, unknown = random.normal(size=100), np.zeros(100)
    acoustic[:2], unknown[0] = [1.0, 0.0], 1.0
    errors = np.zeros(100)
    errors[0] = 1
    arrays = ["acoustic", "oov"], np.stack([acoustic, unknown]), errors, [2] * 50, [1.0, 0.0]
    problem = make_problem(*arrays, [(1.0, 1.0), UNBOUNDED])
    assert problem.units[1] == pytest.approx(1.0)
    assert minimise_errors(problem, strength=0.1)[1] == pytest.approx(-2.0, abs=0.6)
