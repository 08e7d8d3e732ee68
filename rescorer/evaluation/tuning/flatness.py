"""Find weights that are as good as the chosen ones: along each weight, and along the flattest direction.

Errors are a step function of the weights, so that neighbouring points differ by chance. A point is equal
within the noise if its errors on the same lists do not exceed those of the chosen weights by 1.96 standard
errors of the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.weight_search.error_search import find_step_bounds
from rescorer.evaluation.weight_search.expected_errors import ExpectedErrors
from rescorer.evaluation.weight_search.fitting import Solution
from rescorer.evaluation.weight_search.problem import TuningProblem

STEP = 0.05
"""Distance between the points that are tried, in natural units."""
MAX_STEP = 2.0
SIGNIFICANT = 1.96
"""Difference that is not noise, in standard errors."""
GRADIENT_STEP = 0.05
"""Step of the finite differences of the gradient, in natural units."""
MIN_SHARE = 0.1
"""Smallest share of the longest move for which a weight is named in a direction."""


@dataclass(frozen=True, slots=True)
class FlatDirection:
    """Weights that can change, alone or together, without an effect beyond the noise."""

    low: dict[str, float]
    """Values at one end, by name of the weight."""
    high: dict[str, float]
    """Values at the other end."""

    def describe(self) -> str:
        """For example: ``lm:mixture 9.6 to 12.6 together with word 14.2 to 19.6``."""
        return " together with ".join(
            f"{name} {value:.4g} to {self.high[name]:.4g}" for name, value in self.low.items()
        )


def find_flat_directions(
    problem: TuningProblem, solution: Solution
) -> tuple[list[FlatDirection], FlatDirection | None]:
    """Find how far each free weight can move alone, and all of them along the flattest direction.

    The flattest direction is that of the least curvature of the expected errors, in natural units. It is None
    if fewer than two weights are free.
    """
    problem = problem.with_mixture(solution.mixture)
    free = problem.free
    alone = []
    for k in free:
        direction = np.zeros(len(problem.start))
        direction[k] = problem.units[k]
        alone.append(_walk(problem, solution.weights, direction))
    if len(free) < 2:
        return alone, None
    direction = np.zeros(len(problem.start))
    direction[free] = _find_flattest(problem, solution) * problem.units[free]
    return alone, _walk(problem, solution.weights, direction)


def _find_flattest(problem: TuningProblem, solution: Solution) -> np.ndarray:
    """Direction of the least curvature of the expected errors, (F,) in natural units, of length 1."""
    objective = ExpectedErrors(problem, strength=0.0)
    point = np.append(problem.moves(solution.weights)[objective.free], solution.log_sharpness)
    n = len(point) - 1
    curvature = np.zeros((n, n))
    for k in range(n):
        step = np.zeros(n + 1)
        step[k] = GRADIENT_STEP
        curvature[k] = (objective.loss(point + step)[1] - objective.loss(point - step)[1])[:n]
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    flattest: np.ndarray = vectors[:, np.argmin(np.abs(values))]
    return flattest * np.sign(flattest[np.argmax(np.abs(flattest))])


def _walk(problem: TuningProblem, weights: np.ndarray, direction: np.ndarray) -> FlatDirection:
    """Go from ``weights`` to both sides until the errors rise by more than their noise."""
    errors, slopes = problem.list_errors(weights), problem.totals(direction)
    totals = problem.totals(weights)
    first, last = find_step_bounds(problem, weights, direction)
    ends = []
    for side, bound in ((-1.0, -first), (1.0, last)):
        reached = 0.0
        for step in np.arange(STEP, min(MAX_STEP, bound) + STEP / 2, STEP):
            change = problem.errors[problem.choose_by(totals + side * step * slopes)] - errors
            if change.sum() > SIGNIFICANT * np.sqrt((change**2).sum()):
                break
            reached = float(step)
        ends.append(weights + side * reached * direction)
    moves = np.abs(problem.moves(problem.start + direction))
    named = np.flatnonzero(moves >= MIN_SHARE * moves.max())
    low, high = ({problem.names[k]: float(end[k]) for k in named} for end in ends)
    return FlatDirection(low, high)
