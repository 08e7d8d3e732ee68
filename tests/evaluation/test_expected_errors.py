"""Expected errors and their gradient against slow twins, and fits under several λ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rescorer.evaluation.weight_search import (
    METHODS,
    ExpectedErrors,
    Fitter,
    Method,
    minimise_expected_errors,
)
from tests.support.tuning_problems import expect_one_by_one, pairs, problems

MOVES = st.lists(st.floats(-1, 1), min_size=4, max_size=4)


@given(problems(n_weights=4), MOVES, st.sampled_from([0.0, 2.5]))
def test_loss_and_gradient_match_slow_twins(problem, moves, strength):
    objective = ExpectedErrors(problem, strength)
    n = len(objective.free)
    point = np.array([*moves[:n], moves[-1]])
    value, gradient = objective.loss(point)
    sharpness = objective.start_sharpness * np.exp(point[-1])
    expected = expect_one_by_one(problem, objective.weights_at(point), sharpness)
    assert value == pytest.approx(expected + strength * (point**2).sum())
    for k in range(n + 1):
        step = np.zeros(n + 1)
        step[k] = 1e-5
        difference = objective.loss(point + step)[0] - objective.loss(point - step)[0]
        assert gradient[k] == pytest.approx(difference / 2e-5, rel=1e-4, abs=1e-5)


@given(problems(n_weights=3), st.sampled_from([0.1, 10.0]))
def test_descent_lowers_the_loss_and_keeps_the_scale(problem, strength):
    point = minimise_expected_errors(problem, strength)
    objective = ExpectedErrors(problem, strength)
    moves = np.append(problem.moves(point.weights)[objective.free], point.log_sharpness)
    assert objective.loss(moves)[0] <= objective.loss(np.zeros_like(moves))[0] + 1e-9
    assert point.weights[0] == 1.0


def test_a_strong_penalty_keeps_the_start():
    problem = pairs((1.0, (1, 0)), (0.5, (1, 0)))
    weak, strong = (minimise_expected_errors(problem, strength).weights for strength in (0.01, 1e6))
    assert weak[1] > 1.0
    assert strong[1] == pytest.approx(0.0, abs=1e-3)


@given(problems(n_weights=3, n_mixtures=2), st.sampled_from(METHODS))
def test_fits_choose_among_mixtures_and_never_cost_more_than_the_start(problem, method):
    fitter = Fitter(problem)
    solution = fitter.fit(method)
    strength = method.strength * fitter.scale
    if method.objective == "errors":
        fitted = problem.with_mixture(solution.mixture)
        assert fitted.cost(solution.weights, strength) <= problem.cost(problem.start, strength) + 1e-9
    if method.objective == "start":
        assert (solution.weights == problem.start).all()


@given(problems(n_weights=3, n_mixtures=2))
def test_another_mixture_replaces_its_component_only(problem):
    assume(problem.mixtures is not None)
    changed = problem.with_mixture(2)
    assert (changed.components[1] == problem.mixtures.log_probs[2]).all()
    assert (changed.components[[0, 2]] == problem.components[[0, 2]]).all()
    assert changed.penalty(problem.start) == pytest.approx(problem.mixtures.distance(2))
    assert changed.with_mixture(0).penalty(problem.start) == 0.0


def test_a_better_mixture_is_found():
    """Under the λ of the start the language model is wrong, under another one it is right."""
    from rescorer.evaluation.weight_search import MixtureChoices, make_problem

    n = 20
    components = np.array([[0.0, -1.0] * n, [1.0, 0.0] * n])
    mixtures = MixtureChoices(1, ((0.9, 0.1), (0.5, 0.5)), np.array([components[1], [0.0, 3.0] * n]))
    bounds = [(1.0, 1.0), (0.0, np.inf)]
    problem = make_problem(["am", "lm"], components, [1, 0] * n, [2] * n, [1.0, 1.0], bounds, mixtures)
    for objective in ("errors", "expected errors"):
        solution = Fitter(problem).fit(Method(objective, 0.03))
        assert solution.mixture == 1
        assert solution.list_errors(problem).sum() == 0
