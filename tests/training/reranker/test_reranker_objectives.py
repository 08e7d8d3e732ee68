"""Objectives of rerankers agree with their definition, and gradients with finite differences."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer_training.reranker.arrays import (
    MAX_PAIR_DISTANCE,
    OBJECTIVES,
    TrainingArrays,
    make_arrays,
    make_loss,
)
from rescorer_training.reranker.fitting import (
    PenalisedLoss,
    draw_parameters,
    fit,
    linear_parameters,
    make_ensemble,
)

finite = st.floats(-4, 4)


@st.composite
def problems(draw, n_features: int = 3) -> tuple[TrainingArrays, np.ndarray]:
    """Draw lists with errors and features, and a score per hypothesis."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    n = sum(lengths)
    errors = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    x = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(n, n_features))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    names = tuple("abcdefgh"[:n_features])
    arrays = TrainingArrays(
        names, np.ones(n_features), x, np.array(errors, dtype=float), np.zeros(n, dtype=bool), offsets
    )
    return arrays, np.array(draw(st.lists(finite, min_size=n, max_size=n)))


def slow_loss(objective: str, arrays: TrainingArrays, scores: np.ndarray) -> float:
    """The objective by its definition, list by list."""
    value = 0.0
    for begin, end in pairwise(arrays.offsets.tolist()):
        s, e = scores[begin:end].tolist(), arrays.errors[begin:end].tolist()
        total = sum(map(exp, s))
        p = [exp(score) / total for score in s]
        least = [i for i, count in enumerate(e) if count == min(e)]
        pairs = [
            (i, j)
            for i in range(len(s))
            for j in range(len(s))
            if e[i] < e[j] and abs(i - j) <= MAX_PAIR_DISTANCE
        ]
        if objective == "expected errors":
            value += sum(a * b for a, b in zip(p, e, strict=True))
        elif objective == "cross entropy" and len(least) < len(e):
            value -= sum(log(p[i]) for i in least) / len(least)
        elif objective == "pairwise":
            value += sum((e[j] - e[i]) * log(1 + exp(s[j] - s[i])) for i, j in pairs) / max(len(pairs), 1)
    return value


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(problem=problems())
def test_loss_and_gradient_agree_with_their_definition(objective, problem):
    arrays, scores = problem
    loss = make_loss(objective, arrays)
    value, gradient = loss(scores)
    assert value == pytest.approx(slow_loss(objective, arrays, scores), abs=1e-9)
    np.testing.assert_allclose(gradient, differences(lambda s: loss(s)[0], scores), atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(problem=problems(), n_hidden=st.integers(0, 3), seed=st.integers(0, 99))
def test_gradient_by_parameters_agrees_with_finite_differences(objective, problem, n_hidden, seed):
    arrays, _ = problem
    random = np.random.default_rng(seed)
    shape = draw_parameters(np.zeros(3), n_hidden, seed)
    flat = random.normal(size=len(shape.flatten()))
    penalised = PenalisedLoss(arrays.x, make_loss(objective, arrays), 0.3, np.array([1.0, 0.0, 0.0]))
    _, gradient = penalised(shape.unflatten(flat))
    slow = differences(lambda f: penalised(shape.unflatten(f))[0], flat)
    np.testing.assert_allclose(gradient, slow, atol=1e-5)


def differences(function, at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Central finite differences."""
    moves = step * np.eye(len(at))
    return np.array([(function(at + move) - function(at - move)) / (2 * step) for move in moves])


@given(problem=problems(), n_hidden=st.integers(0, 3), seed=st.integers(0, 99))
def test_training_and_ensemble_compute_the_same_score(problem, n_hidden, seed):
    arrays, _ = problem
    shape = draw_parameters(np.zeros(3), n_hidden, seed)
    flat = np.random.default_rng(seed).normal(size=len(shape.flatten()))
    network = shape.unflatten(flat)
    np.testing.assert_allclose(make_ensemble([network, network]).score(arrays.x), network.score(arrays.x))
    np.testing.assert_array_equal(network.flatten(), flat)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_fitting_finds_what_orders_the_lists(objective):
    random = np.random.default_rng(0)
    errors = [random.integers(0, 5, size=6) for _ in range(50)]
    matrices = [
        np.stack([random.normal(size=6), -list_errors.astype(float)], axis=1) for list_errors in errors
    ]
    arrays = make_arrays(["noise", "truth"], matrices, errors, [np.zeros(6, dtype=bool)] * 50)
    prior = np.array([1.0, 0.0])
    fitted = fit(arrays, objective, 0.1, prior, linear_parameters(prior))
    assert abs(fitted.linear[0]) < 0.3 * fitted.linear[1]
    assert arrays.list_errors(fitted.score(arrays.x)).sum() == sum(
        list_errors.min() for list_errors in errors
    )
    same = fit(arrays, objective, 0.1, prior, linear_parameters(prior))
    np.testing.assert_array_equal(fitted.linear, same.linear)
    strict = fit(arrays, objective, 1e6, prior, linear_parameters(prior))
    np.testing.assert_allclose(strict.linear, prior, atol=1e-3)


def test_features_that_tell_nothing_apart_are_left_out():
    random = np.random.default_rng(1)
    matrices = [random.normal(size=(4, 2)) for _ in range(3)]
    wide = [
        np.stack([m[:, 0], np.full(4, i), -3 * m[:, 0] + 7, m[:, 1]], axis=1) for i, m in enumerate(matrices)
    ]
    arrays = make_arrays(
        ["a", "constant", "like a", "b"], wide, [np.arange(4)] * 3, [np.zeros(4, dtype=bool)] * 3
    )
    assert arrays.features == ("a", "b")
    np.testing.assert_allclose((arrays.x**2).mean(axis=0), 1.0)
    np.testing.assert_allclose(arrays.x[:4].mean(axis=0), 0.0, atol=1e-12)
