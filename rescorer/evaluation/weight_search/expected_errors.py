"""Minimise the errors that are expected under posteriors: a smooth function of the weights.

The posteriors of a list are the softmax of its totals times a sharpness κ, and the loss is Σ_i p_i·errors_i
over all lists (minimum word error training: Prabhavalkar et al., 2018, "Minimum Word Error Rate Training for
Attention-based Sequence-to-Sequence Models"; Smith and Eisner, 2006, anneal κ). A sharp softmax is the
maximum, which only depends on the proportions between weights; the expected errors also depend on their
scale. κ stands for that scale: it is tuned together with the weights, and the ranking does not need it.

Weights are kept close to the start by the penalty ``strength`` · Σ_k (move_k / unit_k)², κ by the same
penalty on ln κ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rescorer.evaluation.weight_search.problem import TuningProblem
from rescorer.evaluation.weight_search.segments import (
    softmax_per_list,
    spread_over,
    spread_per_list,
    sum_per_list,
)

LOG_SHARPNESS_BOUND = 5.0
"""How far ln κ may move from the start, at which totals vary by about 1 within a list."""
MAX_ITERATIONS = 60


class SmoothPoint(NamedTuple):
    """Weights (K,), and ln κ relative to that of the start."""

    weights: np.ndarray
    log_sharpness: float


class ExpectedErrors:
    """The loss and its gradient at moves (F + 1,): the free weights in natural units, then ln κ."""

    def __init__(self, problem: TuningProblem, strength: float) -> None:
        self.problem, self.strength, self.free = problem, strength, problem.free
        spread = float(spread_per_list(problem.totals(problem.start), problem.offsets).mean())
        self.start_sharpness = 1.0 / spread if spread > 0 else 1.0

    def weights_at(self, moves: np.ndarray) -> np.ndarray:
        weights = self.problem.start.copy()
        weights[self.free] += moves[:-1] * self.problem.units[self.free]
        return weights

    def loss(self, moves: np.ndarray) -> tuple[float, np.ndarray]:
        """The penalised expected errors, and their gradient (F + 1,)."""
        problem, offsets = self.problem, self.problem.offsets
        totals = problem.totals(self.weights_at(moves))
        sharpness = self.start_sharpness * float(np.exp(moves[-1]))
        posteriors = softmax_per_list(sharpness * totals, offsets)
        weighted = posteriors * problem.errors
        expected = sum_per_list(weighted, offsets)
        posteriors *= spread_over(expected, offsets)
        by_total = weighted - posteriors  # (H,) gradient by sharpness · total: p_i (errors_i - expected)
        by_weight = sharpness * ((problem.components @ by_total) * problem.units)[self.free]
        gradient = np.append(by_weight, sharpness * float(by_total @ totals))
        value = float(expected.sum()) + self.strength * float(moves @ moves)
        return value, gradient + 2.0 * self.strength * moves


def minimise_expected_errors(
    problem: TuningProblem, strength: float, start: SmoothPoint | None = None
) -> SmoothPoint:
    """Find weights with few expected errors, close to the start of the problem.

    Args:
        strength: number of errors that a move of one natural unit must save; above 0.
        start: where to begin the descent; None for the start of the problem.
    """
    from scipy.optimize import minimize  # a server never tunes

    objective = ExpectedErrors(problem, strength)
    free = objective.free
    start = start or SmoothPoint(problem.start, 0.0)
    first = np.append(problem.moves(start.weights)[free], start.log_sharpness)
    units = problem.units[free, None]
    limits = (problem.bounds[free] - problem.start[free, None]) / units
    result = minimize(
        objective.loss,
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=[*limits.tolist(), (-LOG_SHARPNESS_BOUND, LOG_SHARPNESS_BOUND)],
        options={"maxiter": MAX_ITERATIONS, "ftol": 1e-7},
    )
    weights = np.clip(objective.weights_at(result.x), *problem.bounds.T)
    return SmoothPoint(weights, float(result.x[-1]))
