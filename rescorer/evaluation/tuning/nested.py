"""Nested cross-validation: choose the method inside each fold, and count errors outside.

No list is ranked by weights, or by a choice of objective and strength, that it helped to make (Varma and
Simon, 2006, "Bias in error estimation when using cross-validation for model selection").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rescorer.errors import ConfigError
from rescorer.evaluation.tuning.folds import Folds
from rescorer.evaluation.weight_search.fitting import METHODS, Fitter, Method, Solution
from rescorer.evaluation.weight_search.problem import TuningProblem
from rescorer.runtime.cpu_count import count_cpus

MIN_PARALLEL_HYPOTHESES = 100_000
"""Number of hypotheses from which folds are fitted by several threads; small arrays gain nothing from
them."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoldResult:
    """Weights that were fitted without the lists of one fold."""

    lists: np.ndarray
    """Indices of the held-out lists."""
    method: Method
    solution: Solution


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The effect of tuning on lists that took no part in it."""

    folds: tuple[FoldResult, ...]
    errors: np.ndarray
    """(L,) int64, errors of each list under the weights of its fold."""
    start_errors: np.ndarray
    """(L,) int64, under the weights that tuning started from."""


def choose_method(problem: TuningProblem, folds: Folds, methods: Sequence[Method] = METHODS) -> Method:
    """Choose the most cautious method that is as good as the best one on held-out folds, within chance.

    The one-standard-error rule (Breiman et al., 1984): the method with the fewest errors is chosen over a
    more cautious one only if it saves more errors than one standard error of their difference over units.
    A method of few lists cannot be judged: if there are fewer than two units, the first one is returned.

    Args:
        methods: the most cautious one first.
    """
    if folds.n_folds < 2:
        return methods[0]
    errors = np.zeros((len(methods), problem.n_lists), dtype=np.int64)

    def count(fold: int) -> None:
        tuning, held_out = folds.split(fold)
        if len(tuning):
            fitter, judged = Fitter(problem.select(tuning)), problem.select(held_out)
            errors[:, held_out] = [fitter.fit(method).list_errors(judged) for method in methods]

    _map(count, range(folds.n_folds), problem)
    return methods[choose_cautious(errors, folds.unit)]


def choose_cautious(errors: np.ndarray, units: np.ndarray) -> int:
    """The first of M methods whose errors are as few as those of the best one, within one standard error.

    Args:
        errors: (M, L) int64 of each method on held-out lists, the most cautious method first.
        units: (L,) unit of each list; the standard error is that of the difference over units.
    """
    return int(np.argmax(is_as_good(errors, units)))


def is_as_good(errors: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Whether the errors of each method are as few as those of the best one, within one standard error:
    (M,) bool. Arguments as for ``choose_cautious``."""
    best = int(np.argmin(errors.sum(axis=1)))
    _, unit = np.unique(units, return_inverse=True)
    lost = np.array([np.bincount(unit, row) for row in errors - errors[best]])  # (M, units)
    standard_errors = lost.std(axis=1, ddof=1) * np.sqrt(lost.shape[1])
    as_good: np.ndarray = lost.sum(axis=1) <= standard_errors
    return as_good


def cross_validate_problem(
    problem: TuningProblem, folds: Folds, methods: Sequence[Method] = METHODS
) -> CrossValidation:
    """Hold out each fold in turn: choose a method and fit weights on the others, count errors on the fold.

    Raises:
        ConfigError: no lists are left to tune on without some fold.
    """

    def hold_out(fold: int) -> FoldResult:
        tuning, held_out = folds.split(fold)
        if not len(tuning):
            raise ConfigError(
                "the weights cannot be cross-validated, because every list shares its reference with one of "
                "a fold that is held out: more lists with different references are needed; without tuning, "
                "`rescorer evaluate` works"
            )
        part = problem.select(tuning)
        method = choose_method(part, folds.subdivide(tuning), methods)
        return FoldResult(held_out, method, Fitter(part).fit(method))

    results = _map(hold_out, range(folds.n_folds), problem)
    errors = np.zeros(problem.n_lists, dtype=np.int64)
    for result in results:
        errors[result.lists] = result.solution.list_errors(problem.select(result.lists))
    return CrossValidation(tuple(results), errors, problem.list_errors(problem.start))


def fit_all(
    problem: TuningProblem, folds: Folds, methods: Sequence[Method] = METHODS
) -> tuple[Method, Solution]:
    """Choose a method by cross-validation and fit weights on all lists."""
    method = choose_method(problem, folds.subdivide(np.arange(problem.n_lists)), methods)
    return method, Fitter(problem).fit(method)


def _map(function: Callable[[int], T], items: Iterable[int], problem: TuningProblem) -> list[T]:
    """Apply a function to each item, by several threads if the arrays are large: numpy then runs in
    parallel."""
    n_threads = count_cpus() if len(problem.errors) >= MIN_PARALLEL_HYPOTHESES else 1
    if n_threads == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(function, items))
