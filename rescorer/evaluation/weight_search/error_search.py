"""Minimise the errors of the top hypotheses exactly, along one line of weights after the other (Och, 2003).

The lines go in the direction of each weight and in random directions, from several starting points. Errors
are a step function of the weights, so that many points are equally good: a move away from the start must save
errors in proportion to its squared length, and of equally good steps the middle of the widest stretch is
taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rescorer.evaluation.weight_search.line_search import compute_error_curve
from rescorer.evaluation.weight_search.problem import TuningProblem

N_RANDOM_STARTS = 2
"""Number of random starting points around the given ones."""
START_SPREAD = 0.5
"""Standard deviation of random starting points, in natural units."""
MAX_ROUNDS = 10
"""Maximum number of passes over all directions from one starting point; a pass that gains little ends the
search."""
WINDOW = 2.0
"""How far to search to either side of a point, in natural units."""
MIN_GAIN = 0.05
"""Gain of a pass that makes another one worth while, in units of the square root of the errors: less is
noise."""
MIN_INTERVAL_WIDTH = 1e-4
"""Smallest usable width in natural units; a narrower interval cannot be distinguished from a tie."""


def minimise_errors(
    problem: TuningProblem, strength: float, starts: Sequence[np.ndarray] = (), seed: int = 1
) -> np.ndarray:
    """Find weights (K,) with few errors, close to the start of the problem where that adds few errors.

    Args:
        strength: number of errors that a move of one natural unit must save.
        starts: further points to start from; the result costs no more than any of these and the start.
        seed: random seed of starting points and directions.
    """
    random = np.random.default_rng(seed)
    free = problem.free
    points = [problem.start, *starts]
    for _ in range(N_RANDOM_STARTS if len(free) > 1 else 0):
        point = problem.start.copy()
        point[free] += random.normal(size=len(free), scale=START_SPREAD) * problem.units[free]
        points.append(np.clip(point, *problem.bounds.T))
    best, best_cost = problem.start, problem.cost(problem.start, strength)
    for point in points:
        weights, cost = _descend(problem, point, strength, random)
        if cost < best_cost:
            best, best_cost = weights, cost
    return best


def _descend(
    problem: TuningProblem, weights: np.ndarray, strength: float, random: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Move along one direction after the other while that lowers the cost."""
    cost = problem.cost(weights, strength)
    for _ in range(MAX_ROUNDS):
        cost_before = cost
        for direction in _directions(problem, random):
            moved, expected_cost = _best_point(problem, weights, direction, strength)
            if expected_cost < cost and (moved_cost := problem.cost(moved, strength)) < cost:
                weights, cost = moved, moved_cost
        if cost_before - cost <= MIN_GAIN * np.sqrt(cost):
            break
    return weights, cost


def _directions(problem: TuningProblem, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield one direction per free weight, and as many random ones, (K,) of one natural unit."""
    free = problem.free
    for k in free:
        direction = np.zeros(len(problem.start))
        direction[k] = problem.units[k]
        yield direction
    for _ in range(len(free) if len(free) > 1 else 0):
        direction = np.zeros(len(problem.start))
        direction[free] = random.normal(size=len(free))
        yield direction / np.linalg.norm(direction) * problem.units


def _best_point(
    problem: TuningProblem, weights: np.ndarray, direction: np.ndarray, strength: float
) -> tuple[np.ndarray, float]:
    """Find the cheapest point on a line, the middle of an interval between two corners, and its cost.

    Among equally cheap intervals, the widest is used; among equally wide ones, the one nearest to the start.
    """
    low, high = find_step_bounds(problem, weights, direction)
    if high - low <= MIN_INTERVAL_WIDTH:
        return weights, np.inf
    slopes = problem.totals(direction)
    curve = compute_error_curve(problem.totals(weights), slopes, problem.errors, problem.offsets, low, high)
    edges = np.concatenate([[low], curve.corners, [high]])
    widths = np.diff(edges)
    usable = widths > MIN_INTERVAL_WIDTH
    if not usable.any():
        return weights, np.inf
    middles, widths = ((edges[:-1] + edges[1:]) / 2)[usable], widths[usable]
    moves, moves_per_step = problem.moves(weights), problem.moves(problem.start + direction)
    distances = moves @ moves + 2 * middles * (moves @ moves_per_step) + middles**2
    costs = curve.errors[usable] + strength * (distances + problem.penalty_of_mixture)
    best = np.lexsort((distances, -widths, costs))[0]
    moved: np.ndarray = np.clip(weights + middles[best] * direction, *problem.bounds.T)
    return moved, float(costs[best])


def find_step_bounds(
    problem: TuningProblem, weights: np.ndarray, direction: np.ndarray
) -> tuple[float, float]:
    """First and last step along ``direction`` from ``weights`` within the bounds and the window."""
    moving = direction != 0
    edges = (problem.bounds[moving] - weights[moving, None]) / direction[moving, None]  # (M, 2)
    return max(-WINDOW, float(edges.min(axis=1).max())), min(WINDOW, float(edges.max(axis=1).min()))
