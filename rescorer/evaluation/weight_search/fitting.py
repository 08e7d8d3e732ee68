"""Fit weights by one of several methods: an objective, and how strongly it keeps to the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rescorer.evaluation.weight_search.error_search import minimise_errors
from rescorer.evaluation.weight_search.expected_errors import (
    ExpectedErrors,
    SmoothPoint,
    minimise_expected_errors,
)
from rescorer.evaluation.weight_search.problem import TuningProblem

Objective = Literal["start", "errors", "expected errors"]


@dataclass(frozen=True, slots=True)
class Method:
    """How weights are fitted."""

    objective: Objective
    """What is minimised; ``start`` changes nothing."""
    strength: float = 0.0
    """Errors that a move of one natural unit must save, in units of the square root of the errors at the
    start: about the standard deviation of their number."""

    def __str__(self) -> str:
        return (
            self.objective if self.objective == "start" else f"{self.objective}, strength {self.strength:g}"
        )


STRENGTHS = (3.0, 0.3, 0.03)
METHODS = (
    Method("start"),
    *(Method(objective, strength) for strength in STRENGTHS for objective in ("expected errors", "errors")),
)  # fmt: skip
"""Methods to choose from, the most cautious first: it is preferred where several do equally well."""
MAX_MIXTURE_ROUNDS = 3
"""Maximum number of times that λ is chosen again for changed weights."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Fitted weights."""

    weights: np.ndarray
    """(K,)"""
    mixture: int = 0
    """The choice of λ; see ``MixtureChoices``."""
    log_sharpness: float = 0.0
    """Sharpness κ of the expected errors, as ln κ relative to that of the start; 0 if they were not
    fitted."""

    def list_errors(self, problem: TuningProblem) -> np.ndarray:
        """Errors of the hypothesis that is ranked first in each list, (L,)."""
        return problem.with_mixture(self.mixture).list_errors(self.weights)


class Fitter:
    """Fit one problem by several methods, each of which begins where a more cautious one ended."""

    def __init__(self, problem: TuningProblem) -> None:
        self.problem = problem
        self.scale = max(float(np.sqrt(problem.list_errors(problem.start).sum())), 1.0)
        self._solutions: dict[Method, Solution] = {}

    def fit(self, method: Method) -> Solution:
        """Fit the weights; deterministic."""
        if method not in self._solutions:
            self._solutions[method] = self._fit(method)
        return self._solutions[method]

    def _fit(self, method: Method) -> Solution:
        can_change = len(self.problem.free) or self.problem.mixtures is not None
        if method.objective == "start" or not can_change:
            return Solution(self.problem.start)
        strength = method.strength * self.scale
        if method.objective == "errors":
            smooth = self.fit(Method("expected errors", method.strength))

            def search(problem: TuningProblem, start: Solution) -> Solution:
                weights = minimise_errors(problem, strength, [start.weights])
                return Solution(weights, problem.mixture)

            def cost(problem: TuningProblem, solution: Solution) -> float:
                return problem.cost(solution.weights, strength)

            return self._choose_mixture(search, cost, smooth)

        def descend(problem: TuningProblem, start: Solution) -> Solution:
            point = SmoothPoint(start.weights, start.log_sharpness)
            return Solution(*_reorder(minimise_expected_errors(problem, strength, point), problem.mixture))

        def loss(problem: TuningProblem, solution: Solution) -> float:
            objective = ExpectedErrors(problem, strength)
            moves = np.append(problem.moves(solution.weights)[objective.free], solution.log_sharpness)
            return objective.loss(moves)[0] + strength * problem.penalty_of_mixture

        weaker = [s for s in STRENGTHS if s > method.strength]
        before = self.fit(Method("expected errors", weaker[-1])) if weaker else Solution(self.problem.start)
        return self._choose_mixture(descend, loss, before)

    def _choose_mixture(
        self,
        fit: Callable[[TuningProblem, Solution], Solution],
        cost: Callable[[TuningProblem, Solution], float],
        start: Solution,
    ) -> Solution:
        """Fit the weights, choose the best λ for them, and so on while that lowers the cost."""
        problem = self.problem.with_mixture(start.mixture)
        solution = fit(problem, start)
        if self.problem.mixtures is None:
            return solution
        best_cost = cost(problem, solution)
        for _ in range(MAX_MIXTURE_ROUNDS):
            choices = range(len(self.problem.mixtures.lambdas))
            costs = [cost(self.problem.with_mixture(choice), solution) for choice in choices]
            choice = int(np.argmin(costs))
            if costs[choice] >= best_cost:
                break
            problem = self.problem.with_mixture(choice)
            moved = fit(problem, solution)
            moved_cost = cost(problem, moved)
            if moved_cost >= best_cost:
                break
            solution, best_cost = moved, moved_cost
        return solution


def _reorder(point: SmoothPoint, mixture: int) -> tuple[np.ndarray, int, float]:
    return point.weights, mixture, point.log_sharpness
