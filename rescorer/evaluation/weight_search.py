"""Search for weights that make few errors.

The module works on arrays and never sees an n-best list. A ``TuningProblem`` goes in: the components (scores)
and the errors of all hypotheses. The hypotheses of all lists lie one after the other in flat arrays, and
``offsets`` (L + 1,) int64 says where each list begins. Every list has at least one hypothesis. ``Fitter``
finds weights by one of several methods.

If the hypothesis with the highest total wins, only the proportions between weights matter. One weight can
then stay fixed and set the scale; usually that is the weight of the recogniser's score. Decision rules that
use posteriors depend on the scale as well. For them, a factor on all totals sets the scale: the sharpness κ
in this module, and the temperature of the decision rule afterwards.

There are two objectives.

*The errors of the top hypotheses* are minimised exactly, along one line in the space of weights after the
other (Och, 2003, "Minimum Error Rate Training in Statistical Machine Translation"). Along a line, the total
of each hypothesis is a linear function of the step. The top hypothesis of a list therefore changes only at
the corners of the upper envelope of these functions, and the number of errors is constant between corners.
The search begins at several points and follows lines in the direction of each weight and in random
directions. Many points are equally good. So the search moves away from the start only if this saves errors in
proportion to the squared distance. Among equally good steps, it takes the middle of the widest interval.

*The expected errors* under the posteriors are a smooth function of the weights. The posteriors of a list are
the softmax of its totals times κ, and the loss is Σ_i p_i·errors_i over all lists (minimum word error
training: Prabhavalkar et al., 2018, "Minimum Word Error Rate Training for Attention-based
Sequence-to-Sequence Models"; Smith and Eisner, 2006, anneal κ). The larger κ is, the closer the softmax comes
to choosing the maximum. κ is tuned together with the weights, and ranking does not need it. The penalty
``strength`` · Σ_k (move_k / unit_k)² keeps the weights close to the start, and the same penalty on ln κ keeps
κ close to its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from rescorer.errors import ConfigError
from rescorer.ranking import TIE_DECIMALS


def make_offsets(lengths: np.ndarray) -> np.ndarray:
    """Return the offsets (L + 1,) of lists, given the number of hypotheses of each list (L,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def spread_over(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Repeat the value of each list, (L,), for each hypothesis of the list, (H,)."""
    return np.repeat(values, np.diff(offsets))


def maximum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Largest value of each list, (L,)."""
    return np.asarray(np.maximum.reduceat(values, offsets[:-1]))


def sum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sum of each list, (L,)."""
    return np.asarray(np.add.reduceat(values, offsets[:-1]))


def first_maximum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Position in ``values`` of the largest value of each list, (L,) int64; of equal values, the first."""
    positions = np.flatnonzero(values == spread_over(maximum_per_list(values, offsets), offsets))
    return np.asarray(positions[np.searchsorted(positions, offsets[:-1])])


def spread_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Standard deviation within each list, (L,)."""
    lengths = np.diff(offsets)
    centred = values - spread_over(sum_per_list(values, offsets) / lengths, offsets)
    return np.asarray(np.sqrt(sum_per_list(centred**2, offsets) / lengths))


def softmax_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Softmax of the values of each list, (H,) float64."""
    probabilities = np.exp(values - spread_over(maximum_per_list(values, offsets), offsets))
    probabilities /= spread_over(sum_per_list(probabilities, offsets), offsets)
    return probabilities


MAX_UNITS = 100.0
"""Largest distance from the start at which a weight is tried, in natural units (see ``find_units``)."""
MAX_COMPONENT = 1e100
"""Largest value of a component, weighted or not; sums of squares of larger values overflow."""
ROUNDING = 1e-12
"""A component with a relative spread below this is treated as constant: the spread is rounding."""


@dataclass(frozen=True, slots=True)
class MixtureChoices:
    """Several candidates for the interpolation weights λ, with the mixture's log-probabilities under each."""

    column: int
    """Index of the weight of the mixture."""
    lambdas: tuple[tuple[float, ...], ...]
    """The λ of each candidate: one for each language model, then one for each cache. The first candidate is
    the start."""
    log_probs: np.ndarray
    """(G, H) float64, the component of the mixture under each of the G candidates."""

    def distance(self, choice: int) -> float:
        """Distance of a candidate's λ from those of the start, for the penalty.

        It is twice the sum of squared differences between the square roots of the λ: a squared Hellinger
        distance whose unit is comparable with the natural units of weights.
        """
        start, other = (np.sqrt(self.lambdas[index]) for index in (0, choice))
        return 2.0 * float(((start - other) ** 2).sum())


@dataclass(frozen=True, slots=True)
class TuningProblem:
    """Lists with K components per hypothesis, and bounds for the weights of these components."""

    names: tuple[str, ...]
    """Name of each weight, such as ``lm:mixture``."""
    components: np.ndarray
    """(K, H) float64, unweighted. The hypotheses of a list are adjacent and in the recogniser's order."""
    errors: np.ndarray
    """(H,) int64, errors of each hypothesis, in words or other units."""
    offsets: np.ndarray
    """(L + 1,) int64, position at which each list begins."""
    start: np.ndarray
    """(K,) weights to start from; the penalty grows with the distance from them."""
    bounds: np.ndarray
    """(K, 2) lowest and highest value of each weight; both are equal if the weight is fixed."""
    units: np.ndarray
    """(K,) natural unit of each weight; see ``find_units``."""
    mixtures: MixtureChoices | None = None
    """Candidates for the λ; None if the λ are fixed."""
    mixture: int = 0
    """Index of the candidate whose log-probabilities ``components`` holds."""

    @property
    def free(self) -> np.ndarray:
        """Indices of the weights that may change and that make a difference in some list."""
        return np.flatnonzero((self.units > 0) & (self.bounds[:, 0] < self.bounds[:, 1]))

    @property
    def n_lists(self) -> int:
        return len(self.offsets) - 1

    def select(self, lists: np.ndarray) -> TuningProblem:
        """Return the problem with only some of the lists, given by index. Units and start stay the same."""
        lengths = np.diff(self.offsets)[lists]
        offsets = make_offsets(lengths)
        rows = np.repeat(self.offsets[lists] - offsets[:-1], lengths) + np.arange(offsets[-1])
        mixtures = self.mixtures and replace(self.mixtures, log_probs=self.mixtures.log_probs[:, rows])
        parts = {"components": self.components[:, rows], "errors": self.errors[rows]}
        return replace(self, **parts, offsets=offsets, mixtures=mixtures)

    def with_mixture(self, choice: int) -> TuningProblem:
        """Return the problem under another candidate for the λ, given by index."""
        if choice == self.mixture or self.mixtures is None:
            return self
        components = self.components.copy()
        components[self.mixtures.column] = self.mixtures.log_probs[choice]
        return replace(self, components=components, mixture=choice)

    def totals(self, weights: np.ndarray) -> np.ndarray:
        """Total of each hypothesis, (H,)."""
        return np.asarray(weights @ self.components)

    def choose(self, weights: np.ndarray) -> np.ndarray:
        """Find the hypothesis with the highest total in each list, of equal ones the first: positions
        (L,)."""
        return self.choose_by(self.totals(weights))

    def choose_by(self, totals: np.ndarray) -> np.ndarray:
        """Find the hypothesis with the highest of the given totals (H,) in each list, as ``choose`` does."""
        return first_maximum_per_list(np.round(totals, TIE_DECIMALS), self.offsets)

    def list_errors(self, weights: np.ndarray) -> np.ndarray:
        """Errors of the hypothesis that is ranked first in each list, (L,) int64."""
        return np.asarray(self.errors[self.choose(weights)])

    def moves(self, weights: np.ndarray) -> np.ndarray:
        """Signed distance of each weight from the start, (K,) in natural units."""
        return np.divide(weights - self.start, self.units, out=np.zeros_like(weights), where=self.units > 0)

    def penalty(self, weights: np.ndarray) -> float:
        """Squared distance of the weights from the start, in natural units, plus the distance of the λ."""
        return float((self.moves(weights) ** 2).sum()) + self.penalty_of_mixture

    @property
    def penalty_of_mixture(self) -> float:
        """The part of the penalty that the λ cause."""
        return self.mixtures.distance(self.mixture) if self.mixtures else 0.0

    def cost(self, weights: np.ndarray, strength: float) -> float:
        """Errors plus ``strength`` times the penalty."""
        return float(self.list_errors(weights).sum()) + strength * self.penalty(weights)


def make_problem(
    names: Sequence[str],
    components: np.ndarray,
    errors: np.ndarray,
    lengths: Sequence[int] | np.ndarray,
    start: Sequence[float] | np.ndarray,
    bounds: Sequence[tuple[float, float]] | np.ndarray,
    mixtures: MixtureChoices | None = None,
) -> TuningProblem:
    """Check the arrays of a problem, and determine the natural unit of each weight.

    Args:
        names: (K,).
        components: (K, H).
        errors: (H,).
        lengths: (L,) number of hypotheses of each list, at least 1.
        start: (K,).
        bounds: (K, 2); both bounds are equal if the weight is fixed.

    Raises:
        ConfigError: there are no lists, shapes do not match, a component is not finite or too large, or a
            start weight is outside its bounds.
    """
    components = np.ascontiguousarray(components, dtype=np.float64)
    errors, lengths = np.asarray(errors, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
    start, limits = np.asarray(start, dtype=np.float64), np.asarray(bounds, dtype=np.float64)
    k, h = len(names), int(lengths.sum())
    if not len(lengths) or lengths.min() < 1:
        raise ConfigError("no lists to tune on, or a list without hypotheses")
    if components.shape != (k, h) or errors.shape != (h,) or start.shape != (k,) or limits.shape != (k, 2):
        raise ConfigError(
            f"components {components.shape}, errors {errors.shape}, start {start.shape}, "
            f"bounds {limits.shape}; expected ({k}, {h}), ({h},), ({k},) and ({k}, 2)"
        )
    for name, row, weight, (low, high) in zip(names, components, start, limits, strict=True):
        if not np.isfinite(row).all():
            raise ConfigError(f"the component of {name!r} is not finite in every hypothesis")
        if (largest := np.abs(row).max()) * max(abs(weight), 1.0) > MAX_COMPONENT:
            raise ConfigError(
                f"the component of {name!r} is up to ±{largest:g}, with the weight {weight:g}; expected "
                f"at most ±{MAX_COMPONENT:g} for both and for their product: give the stream its log base"
            )
        if not low <= weight <= high:
            raise ConfigError(f"the start weight {name}={weight:g} is outside its bounds {low:g} to {high:g}")
    offsets = make_offsets(lengths)
    units = find_units(components, start @ components, offsets)
    near = np.stack([start - MAX_UNITS * units, start + MAX_UNITS * units], axis=1)
    limits = np.stack([np.maximum(limits[:, 0], near[:, 0]), np.minimum(limits[:, 1], near[:, 1])], axis=1)
    return TuningProblem(tuple(names), components, errors, offsets, start, limits, units, mixtures)


def find_units(components: np.ndarray, totals: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Find the natural unit of each weight.

    If a weight changes by its natural unit, the totals change by about as much as they vary within a list.

    The unit of a weight depends only on lists in which the component differs between hypotheses, because the
    other lists say nothing about the weight. If they counted, a component that differs in few lists, such as
    the number of unknown words, would have a huge unit, and the penalty would hardly limit its weight.

    Args:
        components: (K, H).
        totals: (H,) under the weights that tuning starts from.
        offsets: (L + 1,).

    Returns:
        (K,) units; 0 for a component that makes no difference in any list.
    """
    total_spread = _find_spread(totals, offsets)
    units = np.zeros(len(components))
    for k, row in enumerate(components):
        spread = _find_spread(row, offsets)
        differs = spread > 0
        if differs.any():
            units[k] = (total_spread[differs].mean() or 1.0) / spread[differs].mean()
    return units


def _find_spread(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Standard deviation within each list, (L,); exactly 0 if values differ only by rounding errors."""
    spread = spread_per_list(values, offsets)
    smallest = ROUNDING * max(np.abs(values).max(initial=0.0), 1.0)
    return np.where(spread > smallest, spread, 0.0)


@dataclass(frozen=True, slots=True)
class ErrorCurve:
    """Number of errors as a function of the step along a line; constant between corners."""

    corners: np.ndarray
    """(C,) float64, steps at which the number of errors changes, strictly ascending."""
    errors: np.ndarray
    """(C + 1,) int64 numbers of errors: before the first corner, between corners, after the last corner."""

    def at(self, step: float | np.ndarray) -> np.ndarray:
        """Errors at one or more steps, none of which may be a corner."""
        return self.errors[np.searchsorted(self.corners, step)]


MAX_HALVINGS = 6
"""Largest number of times that a range of steps is halved to rule out hypotheses."""
FEW_CANDIDATES = 4
"""A range is not halved further if at most this many hypotheses per list remain: it would not pay."""
MIN_CANDIDATES = 20_000
"""A range is not halved further if fewer hypotheses than this remain in all lists: the calls of numpy would
take longer than its arithmetic."""


def compute_error_curve(
    intercepts: np.ndarray,
    slopes: np.ndarray,
    errors: np.ndarray,
    offsets: np.ndarray,
    low: float,
    high: float,
    min_candidates: int = MIN_CANDIDATES,
) -> ErrorCurve:
    """Sum the errors of the hypotheses with the highest ``intercept + step * slope`` in each list, for all
    steps.

    If several hypotheses of a list have the same line, the first one counts.

    Args:
        intercepts: (H,) float64, finite.
        slopes: (H,) float64, finite.
        errors: (H,) integer.
        offsets: (L + 1,) int64, position at which each list begins.
        low, high: first and last step of the curve, finite; corners outside are left out.
        min_candidates: number of hypotheses above which ranges are halved. It changes the speed, but not the
            result.
    """
    lines = _Lines(intercepts, slopes, errors, offsets)
    part = _search(lines, low, high, MAX_HALVINGS, min_candidates)
    distinct, index = np.unique(part.corners, return_inverse=True)
    steps = np.zeros(len(distinct) + 1, dtype=np.int64)
    np.add.at(steps, index + 1, part.changes)
    steps[0] = part.start_errors
    return ErrorCurve(distinct, np.cumsum(steps))


class _Lines(NamedTuple):
    """The total of each hypothesis as a line, and its errors; for the fields, see ``compute_error_curve``."""

    intercepts: np.ndarray
    slopes: np.ndarray
    errors: np.ndarray
    offsets: np.ndarray


class _Stretch(NamedTuple):
    """The corners, within a range of steps, of the envelopes of all lists, in no particular order."""

    corners: np.ndarray
    changes: np.ndarray
    """Change of errors at each corner."""
    start_errors: int
    end_errors: int


def _search(lines: _Lines, low: float, high: float, halvings: int, min_candidates: int) -> _Stretch:
    """Find the corners between two steps.

    In each list, two lines are on top at ``low`` and at ``high``. A line that does not exceed one of these
    two anywhere in the range is nowhere on top. In a short range, few lists and hypotheses therefore remain.
    """
    intercepts, slopes, errors, offsets = lines
    at_low, at_high = intercepts + low * slopes, intercepts + high * slopes
    first, last = _top(at_low, slopes, offsets), _top(at_high, -slopes, offsets)
    start_errors, end_errors = int(errors[first].sum()), int(errors[last].sum())
    changing = np.flatnonzero(at_high[last] > at_high[first])
    is_candidate = at_high > spread_over(at_high[first], offsets)
    is_candidate &= at_low > spread_over(at_low[last], offsets)
    is_candidate[last[changing]] = is_candidate[first[changing]] = True
    rows = np.flatnonzero(is_candidate)
    counts = np.bincount(np.searchsorted(offsets, rows, side="right") - 1, minlength=len(offsets) - 1)
    lines = _Lines(intercepts[rows], slopes[rows], errors[rows], make_offsets(counts[changing]))
    if halvings and len(rows) > max(FEW_CANDIDATES * len(changing), min_candidates):
        middle = (low + high) / 2
        left = _search(lines, low, middle, halvings - 1, min_candidates)
        right = _search(lines, middle, high, halvings - 1, min_candidates)
        corners = np.concatenate([left.corners, [middle], right.corners])
        step = [right.start_errors - left.end_errors]  # not 0 if lines cross exactly in the middle
        changes = np.concatenate([left.changes, step, right.changes])
    else:
        corners, changes = _walk(lines, np.searchsorted(rows, first[changing]))
        inside = (low < corners) & (corners < high)
        corners, changes = corners[inside], changes[inside]
    rest = end_errors - start_errors - int(changes.sum())  # not 0 if a corner was rounded to beyond an end
    is_change = changes != 0
    corners = np.append(corners[is_change], [high] * bool(rest))
    changes = np.append(changes[is_change], [rest] * bool(rest)).astype(np.int64)
    return _Stretch(corners, changes, start_errors, end_errors)


def _top(values: np.ndarray, tie_break: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Position of each list's largest value, (L,). Ties go to the largest ``tie_break``, then to the
    first."""
    top = values == spread_over(maximum_per_list(values, offsets), offsets)
    return first_maximum_per_list(np.where(top, tie_break, -np.inf), offsets)


def _walk(lines: _Lines, top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Follow the upper envelopes of all lists from left to right, in parallel: one corner of each per
    iteration.

    The next line of an envelope is the one that crosses the current line first; of several, the steepest.

    Args:
        top: (L,) position of the line on top of each list at the left end.

    Returns:
        Corners, in no particular order, and the change of errors at each.
    """
    intercepts, slopes, errors, offsets = lines
    corners: list[np.ndarray] = [np.empty(0)]
    changes: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
    while len(top):
        rise = slopes - spread_over(slopes[top], offsets)
        drop = spread_over(intercepts[top], offsets) - intercepts
        rises = rise > 0  # a line that is not steeper than the top one does not cross it further right
        lengths = np.add.reduceat(rises, offsets[:-1], dtype=np.int64)
        top_errors = errors[top][lengths > 0]
        intercepts, slopes, errors = intercepts[rises], slopes[rises], errors[rises]
        offsets = make_offsets(lengths[lengths > 0])
        if not len(intercepts):
            break
        with np.errstate(over="ignore"):  # nearly parallel lines cross nowhere
            crossing = drop[rises] / rise[rises]
        top = _top(-crossing, slopes, offsets)
        corners.append(crossing[top])
        changes.append(errors[top] - top_errors)
    return np.concatenate(corners), np.concatenate(changes)


N_RANDOM_STARTS = 2
"""Number of random starting points in addition to the given ones."""
START_SPREAD = 0.5
"""Standard deviation of random starting points, in natural units."""
MAX_ROUNDS = 10
"""Largest number of passes over all directions from one starting point. The search also ends after a pass
that gains less than ``MIN_GAIN``."""
WINDOW = 2.0
"""Distance to search on either side of a point, in natural units."""
MIN_GAIN = 0.05
"""Another pass follows if a pass gains more than this number times the square root of the errors; a smaller
gain is noise."""
MIN_INTERVAL_WIDTH = 1e-4
"""Smallest width of an interval between corners, in natural units; narrower intervals are not chosen."""


def minimise_errors(
    problem: TuningProblem, strength: float, starts: Sequence[np.ndarray] = (), seed: int = 1
) -> np.ndarray:
    """Find weights, (K,), that make few errors and are close to the start: a compromise by ``strength``.

    Args:
        strength: number of errors that a move of one natural unit must save.
        starts: points to start from, in addition to the start of the problem. The result costs no more than
            any of them.
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
    """Yield a direction (K,) for each free weight, then as many random ones, all one natural unit long."""
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
    """Find the cheapest point on a line, and its cost.

    The point is the middle of an interval between two corners. Of equally cheap intervals, the widest is
    taken; of equally wide ones, the one nearest to the start.
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
    return np.asarray(np.clip(weights + middles[best] * direction, *problem.bounds.T)), float(costs[best])


def find_step_bounds(
    problem: TuningProblem, weights: np.ndarray, direction: np.ndarray
) -> tuple[float, float]:
    """Return the first and last step along ``direction`` that stay within the bounds and ``WINDOW``."""
    moving = direction != 0
    edges = (problem.bounds[moving] - weights[moving, None]) / direction[moving, None]  # (M, 2)
    return max(-WINDOW, float(edges.min(axis=1).max())), min(WINDOW, float(edges.max(axis=1).min()))


@dataclass(frozen=True, slots=True)
class Solution:
    """Result of fitting: the weights, the choice of λ, and the sharpness."""

    weights: np.ndarray
    """(K,)"""
    mixture: int = 0
    """Index of the candidate for the λ; see ``MixtureChoices``."""
    log_sharpness: float = 0.0
    """ln κ minus that of the start, if expected errors were minimised; otherwise 0."""

    def list_errors(self, problem: TuningProblem) -> np.ndarray:
        """Errors of the hypothesis that is ranked first in each list, (L,)."""
        return problem.with_mixture(self.mixture).list_errors(self.weights)


LOG_SHARPNESS_BOUND = 5.0
"""Largest distance of ln κ from its start, at which totals vary by about 1 within a list."""
MAX_ITERATIONS = 60


class ExpectedErrors:
    """The penalised expected errors as a function of moves from the start.

    Moves (F + 1,) are the distances from the start: of the F free weights, in natural units, then of ln κ.
    """

    def __init__(self, problem: TuningProblem, strength: float) -> None:
        self.problem, self.strength, self.free = problem, strength, problem.free
        spread = float(spread_per_list(problem.totals(problem.start), problem.offsets).mean())
        self.start_sharpness = 1.0 / spread if spread > 0 else 1.0

    def moves_to(self, solution: Solution) -> np.ndarray:
        """The moves (F + 1,) that lead from the start to a solution."""
        return np.append(self.problem.moves(solution.weights)[self.free], solution.log_sharpness)

    def weights_at(self, moves: np.ndarray) -> np.ndarray:
        """The weights (K,) after moves from the start."""
        weights = self.problem.start.copy()
        weights[self.free] += moves[:-1] * self.problem.units[self.free]
        return weights

    def loss(self, moves: np.ndarray) -> tuple[float, np.ndarray]:
        """Compute the penalised expected errors after moves, and their gradient (F + 1,)."""
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
    problem: TuningProblem, strength: float, start: Solution | None = None
) -> Solution:
    """Find weights with few expected errors, close to the start of the problem.

    Args:
        strength: number of errors that a move of one natural unit must save; above 0.
        start: solution at which the descent begins; None for the start of the problem.
    """
    from scipy.optimize import minimize  # a server never tunes

    objective = ExpectedErrors(problem, strength)
    free = objective.free
    limits = (problem.bounds[free] - problem.start[free, None]) / problem.units[free, None]
    result = minimize(
        objective.loss,
        objective.moves_to(start or Solution(problem.start)),
        jac=True,
        method="L-BFGS-B",
        bounds=[*limits.tolist(), (-LOG_SHARPNESS_BOUND, LOG_SHARPNESS_BOUND)],
        options={"maxiter": MAX_ITERATIONS, "ftol": 1e-7},
    )
    weights = np.clip(objective.weights_at(result.x), *problem.bounds.T)
    return Solution(weights, problem.mixture, float(result.x[-1]))


Objective = Literal["start", "errors", "expected errors"]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to fit weights."""

    objective: Objective
    """The quantity to minimise; with ``start``, nothing is minimised, and the weights of the start stay."""
    strength: float = 0.0
    """Number of errors that a move of one natural unit must save, divided by the square root of the errors at
    the start. This root is about the standard deviation of the number of errors."""

    def __str__(self) -> str:
        is_start = self.objective == "start"
        return self.objective if is_start else f"{self.objective}, strength {self.strength:g}"


STRENGTHS = (3.0, 0.3, 0.03)
METHODS = (
    Method("start"),
    *(Method(objective, strength) for strength in STRENGTHS for objective in ("expected errors", "errors")),
)  # fmt: skip
"""Methods to choose from, the most cautious first. If methods do equally well, the first is used."""
MAX_MIXTURE_ROUNDS = 3
"""Largest number of times that the λ are chosen again because the weights have changed."""


class Fitter:
    """Fits one problem by several methods. Each begins at the result of a more cautious method."""

    def __init__(self, problem: TuningProblem) -> None:
        self.problem = problem
        self.scale = max(float(np.sqrt(problem.list_errors(problem.start).sum())), 1.0)
        self._solutions: dict[Method, Solution] = {}

    def fit(self, method: Method) -> Solution:
        """Fit the weights by a method; calls with the same method give the same result."""
        if method not in self._solutions:
            self._solutions[method] = self._fit(method)
        return self._solutions[method]

    def _fit(self, method: Method) -> Solution:
        start = Solution(self.problem.start)
        can_change = len(self.problem.free) or self.problem.mixtures is not None
        if method.objective == "start" or not can_change:
            return start
        strength = method.strength * self.scale
        if method.objective == "errors":
            return self._choose_mixture(
                lambda problem, start: Solution(
                    minimise_errors(problem, strength, [start.weights]), problem.mixture
                ),
                lambda problem, solution: problem.cost(solution.weights, strength),
                self.fit(Method("expected errors", method.strength)),
            )

        def loss(problem: TuningProblem, solution: Solution) -> float:
            objective = ExpectedErrors(problem, strength)
            return objective.loss(objective.moves_to(solution))[0] + strength * problem.penalty_of_mixture

        stronger = [s for s in STRENGTHS if s > method.strength]
        return self._choose_mixture(
            lambda problem, start: minimise_expected_errors(problem, strength, start),
            loss,
            self.fit(Method("expected errors", stronger[-1])) if stronger else start,
        )

    def _choose_mixture(
        self,
        fit: Callable[[TuningProblem, Solution], Solution],
        cost: Callable[[TuningProblem, Solution], float],
        start: Solution,
    ) -> Solution:
        """Fit the weights, choose the best λ for these weights, and repeat while that lowers the cost."""
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
