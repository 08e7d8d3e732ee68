"""Tuning keeps the start where there is nothing to gain, and finds a gain that is there."""

from __future__ import annotations

import numpy as np
import pytest

from rescorer.evaluation.folds import make_folds
from rescorer.evaluation.tuning import cross_validate_problem, judge
from rescorer.evaluation.weight_search import TuningProblem, make_problem

N_LISTS = 500
N_WORDS = 10
ERROR_RATE = 0.30
CHANGED, GAINED = 0.15, 0.05
"""Shares of the errors that change hands, and that are gained net."""
N_HYPOTHESES = 10
NAMES, START = ["acoustic", "lm", "word"], [1.0, 0.0, 0.0]
BOUNDS = [(1.0, 1.0), (0.0, np.inf), (-np.inf, np.inf)]


def draw_noise(random: np.random.Generator) -> TuningProblem:
    """Lists whose acoustic scores say something about errors, and whose other scores are noise."""
    n = N_LISTS * N_HYPOTHESES
    errors = random.binomial(N_WORDS, ERROR_RATE, size=n)
    components = np.stack([random.normal(size=n) - 0.3 * errors, *random.normal(size=(2, n))])
    return make_problem(NAMES, components, errors, [N_HYPOTHESES] * N_LISTS, START, BOUNDS)


def draw_gain(random: np.random.Generator) -> tuple[TuningProblem, np.ndarray]:
    """Lists of two hypotheses, whose second wins under a good language-model weight in some of the lists.

    Where it wins, it has one error less, or more often than not: so that shares of the errors are fixed and
    broken. Elsewhere the language model prefers the first hypothesis, too.

    Returns:
        The problem, and the change of errors of each list at the best weight, (L,).
    """
    first = random.binomial(N_WORDS, ERROR_RATE, size=N_LISTS)
    rate = ERROR_RATE * N_WORDS
    fixed, broken = rate * (CHANGED + GAINED) / 2, rate * (CHANGED - GAINED) / 2
    kind = random.choice(3, size=N_LISTS, p=[fixed, broken, 1 - fixed - broken])
    kind = np.where((kind == 0) & (first == 0), 2, kind)
    change = np.array([-1, 1, 0])[kind]
    second = np.where(kind == 2, first + random.choice([-1, 1], size=N_LISTS), first + change).clip(0)
    margin = random.uniform(0.5, 1.5, size=N_LISTS)  # by which the acoustic score prefers the first
    support = np.where(kind == 2, -1.0, 2.0) * margin  # of the language model for the second
    components = np.zeros((3, 2 * N_LISTS))
    components[0, 1::2], components[1, 1::2] = -margin, support
    components[2] = random.normal(size=2 * N_LISTS)
    errors = np.stack([first, second], axis=1).ravel()
    return make_problem(NAMES, components, errors, [2] * N_LISTS, START, BOUNDS), change


def changes_weights(problem: TuningProblem) -> bool:
    """Whether `rescorer tune` would write other weights than those of the start."""
    ids = [str(index) for index in range(problem.n_lists)]
    folds = make_folds(ids, [""] * problem.n_lists, ids)
    result = cross_validate_problem(problem, folds)
    words = np.full(problem.n_lists, N_WORDS)
    return judge(result.start_errors, result.errors, words, [""] * problem.n_lists).is_better


def test_the_simulated_gain_is_as_large_as_it_says():
    changes = np.concatenate([draw_gain(np.random.default_rng(seed))[1] for seed in range(40)])
    errors = ERROR_RATE * N_WORDS
    assert np.abs(changes).mean() == pytest.approx(CHANGED * errors, rel=0.06)
    assert -changes.mean() == pytest.approx(GAINED * errors, rel=0.2)


@pytest.mark.slow
def test_noise_changes_nothing_and_a_gain_is_found():
    assert not changes_weights(draw_noise(np.random.default_rng([1, 0])))
    assert changes_weights(draw_gain(np.random.default_rng([1, 0]))[0])
