"""Search for weights on arrays that know nothing of lists: exact line searches and smooth objectives.

Components and errors of hypotheses come in; weights with few errors, under a method, come out. The hypotheses
of all lists lie one after the other in flat arrays; ``offsets`` (L + 1,) int64 says where each list begins,
and every list has at least one hypothesis.

Under the maximum, only the proportions between weights matter, so one of them, the scale, may be fixed:
usually that of the recogniser's score. Rules that use posteriors also depend on the scale. There, a factor on
all totals takes its place: the sharpness of the expected errors while tuning, and the temperature of a
decision rule.

The errors of the top hypotheses are minimised exactly, along one line of weights after the other (Och, 2003,
"Minimum Error Rate Training in Statistical Machine Translation"). Along a line, the total of each hypothesis
is linear in the step, so the top hypothesis of a list only changes at the corners of the upper envelope of
these lines; between corners the errors are constant. The lines go in the direction of each weight and in
random directions, from several starting points. Many points are equally good: a move away from the start must
save errors in proportion to its squared length, and of equally good steps the middle of the widest stretch is
taken.

The errors that are expected under posteriors are a smooth function of the weights. The posteriors of a list
are the softmax of its totals times a sharpness κ, and the loss is Σ_i p_i·errors_i over all lists (minimum
word error training: Prabhavalkar et al., 2018, "Minimum Word Error Rate Training for Attention-based
Sequence-to-Sequence Models"; Smith and Eisner, 2006, anneal κ). A sharp softmax is the maximum, which only
depends on the proportions between weights; the expected errors also depend on their scale. κ stands for that
scale: it is tuned together with the weights, and the ranking does not need it. Weights are kept close to the
start by the penalty ``strength`` · Σ_k (move_k / unit_k)², κ by the same penalty on ln κ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from rescorer.errors import ConfigError
from rescorer.ranking import TIE_DECIMALS


def make_offsets(lengths: np.ndarray) -> np.ndarray:
    """Offsets (L + 1,) of lists with these numbers of hypotheses (L,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def spread_over(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Repeat the value of each list (L,) for each of its hypotheses, (H,)."""
    return np.repeat(values, np.diff(offsets))


def maximum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Largest value of each list, (L,)."""
    return np.asarray(np.maximum.reduceat(values, offsets[:-1]))


def sum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sum of each list, (L,)."""
    return np.asarray(np.add.reduceat(values, offsets[:-1]))


def first_maximum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Position in ``values`` of the largest value of each list, the first one of several: (L,) int64."""
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
"""Distance in natural units from the start beyond which no weight is tried."""
MAX_COMPONENT = 1e100
"""Largest component, weighted or not; sums of squares of larger ones overflow."""
ROUNDING = 1e-12
"""Relative size below which the spread of a component is a rounding error of zero."""


@dataclass(frozen=True, slots=True)
class MixtureChoices:
    """Interpolation weights λ to choose from, and the mixture's log-probabilities under each of them."""

    column: int
    """Index of the weight of the mixture."""
    lambdas: tuple[tuple[float, ...], ...]
    """Interpolation weights of each choice, one per language model and for a cache; those of the start come
    first."""
    log_probs: np.ndarray
    """(G, H) float64, the component of the mixture under each choice."""

    def distance(self, choice: int) -> float:
        """Squared Hellinger distance between a choice and the start, in natural units of half a distance."""
        start, other = (np.sqrt(self.lambdas[index]) for index in (0, choice))
        return 2.0 * float(((start - other) ** 2).sum())


@dataclass(frozen=True, slots=True)
class TuningProblem:
    """Lists with K components per hypothesis, and what may be changed of their K weights."""

    names: tuple[str, ...]
    """Name of each weight, such as ``lm:mixture``."""
    components: np.ndarray
    """(K, H) float64, unweighted; the hypotheses of a list are adjacent and in the recogniser's order."""
    errors: np.ndarray
    """(H,) int64, errors of each hypothesis, in words or other units."""
    offsets: np.ndarray
    """(L + 1,) int64, where each list begins."""
    start: np.ndarray
    """(K,) weights to start from, which the penalty keeps the others close to."""
    bounds: np.ndarray
    """(K, 2) lowest and highest value of each weight; equal for weights that are fixed."""
    units: np.ndarray
    """(K,) natural unit of each weight; see ``find_units``."""
    mixtures: MixtureChoices | None = None
    mixture: int = 0
    """Which choice of λ the components hold."""

    @property
    def free(self) -> np.ndarray:
        """Indices of the weights that may change and make a difference."""
        return np.flatnonzero((self.units > 0) & (self.bounds[:, 0] < self.bounds[:, 1]))

    @property
    def n_lists(self) -> int:
        return len(self.offsets) - 1

    def select(self, lists: np.ndarray) -> TuningProblem:
        """Copy some lists, by their indices; units and start stay those of the whole."""
        lengths = np.diff(self.offsets)[lists]
        offsets = make_offsets(lengths)
        rows = np.repeat(self.offsets[lists] - offsets[:-1], lengths) + np.arange(offsets[-1])
        mixtures = self.mixtures and replace(self.mixtures, log_probs=self.mixtures.log_probs[:, rows])
        parts = {"components": self.components[:, rows], "errors": self.errors[rows]}
        return replace(self, **parts, offsets=offsets, mixtures=mixtures)

    def with_mixture(self, choice: int) -> TuningProblem:
        """The same problem under another choice of λ."""
        if choice == self.mixture or self.mixtures is None:
            return self
        components = self.components.copy()
        components[self.mixtures.column] = self.mixtures.log_probs[choice]
        return replace(self, components=components, mixture=choice)

    def totals(self, weights: np.ndarray) -> np.ndarray:
        """Total of each hypothesis, (H,)."""
        return np.asarray(weights @ self.components)

    def choose(self, weights: np.ndarray) -> np.ndarray:
        """Position of the hypothesis with the highest total of each list; ties go to the first: (L,)."""
        return self.choose_by(self.totals(weights))

    def choose_by(self, totals: np.ndarray) -> np.ndarray:
        """Like ``choose``, for given totals (H,)."""
        return first_maximum_per_list(np.round(totals, TIE_DECIMALS), self.offsets)

    def list_errors(self, weights: np.ndarray) -> np.ndarray:
        """Errors of the hypothesis that is ranked first in each list, (L,) int64."""
        return np.asarray(self.errors[self.choose(weights)])

    def moves(self, weights: np.ndarray) -> np.ndarray:
        """Distance of each weight from the start, (K,) in natural units."""
        return np.divide(weights - self.start, self.units, out=np.zeros_like(weights), where=self.units > 0)

    def penalty(self, weights: np.ndarray) -> float:
        """Squared distance from the start in natural units, λ included."""
        return float((self.moves(weights) ** 2).sum()) + self.penalty_of_mixture

    @property
    def penalty_of_mixture(self) -> float:
        """The part of the penalty that λ makes."""
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
    """Check the arrays and determine the natural unit of each weight.

    Args:
        names: (K,).
        components: (K, H).
        errors: (H,).
        lengths: (L,) number of hypotheses of each list, at least 1.
        start: (K,).
        bounds: (K, 2), the same twice for a weight that is fixed.

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
    """Find the natural unit of each weight: it changes the totals by about as much as they vary in a list.

    Only lists in which a component differs between hypotheses count for its unit. The others say nothing
    about the weight, so that they must not change how far it may move: otherwise a component that differs in
    few lists, such as the number of unknown words, could take a huge weight at the price of a moderate one.

    Args:
        components: (K, H).
        totals: (H,) under the weights that tuning starts from.
        offsets: (L + 1,).

    Returns:
        (K,), 0 for a component that makes no difference in any list.
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
    """Standard deviation within each list, (L,), exactly 0 where it is a rounding error."""
    spread = spread_per_list(values, offsets)
    smallest = ROUNDING * max(np.abs(values).max(initial=0.0), 1.0)
    return np.where(spread > smallest, spread, 0.0)


@dataclass(frozen=True, slots=True)
class ErrorCurve:
    """Errors as a function of the step, constant between neighbouring corners."""

    corners: np.ndarray
    """(C,) float64, strictly ascending."""
    errors: np.ndarray
    """(C + 1,) int64: before the first corner, between corners, after the last corner."""

    def at(self, step: float | np.ndarray) -> np.ndarray:
        """Errors at one or more steps, none of which may be a corner."""
        return self.errors[np.searchsorted(self.corners, step)]


MAX_HALVINGS = 6
"""Largest number of times that a stretch is halved to rule out hypotheses."""
FEW_CANDIDATES = 4
"""Number of candidates per list from which halving a stretch further does not pay."""
MIN_CANDIDATES = 20_000
"""Number of candidates, of all lists, from which it pays: below, calls of numpy take longer than the sums."""


def compute_error_curve(
    intercepts: np.ndarray,
    slopes: np.ndarray,
    errors: np.ndarray,
    offsets: np.ndarray,
    low: float,
    high: float,
    min_candidates: int = MIN_CANDIDATES,
) -> ErrorCurve:
    """Sum, over lists, the errors of the hypothesis with the highest ``intercept + step * slope``.

    Of hypotheses with identical lines, the first one counts.

    Args:
        intercepts: (H,) float64, finite.
        slopes: (H,) float64, finite.
        errors: (H,) integer.
        offsets: (L + 1,) int64, where each list begins.
        low, high: first and last step of interest, finite; corners outside are left out.
        min_candidates: number of candidates above which stretches are halved; does not change the result.
    """
    lines = _Lines(intercepts, slopes, errors, offsets)
    part = _search(lines, low, high, MAX_HALVINGS, min_candidates)
    distinct, index = np.unique(part.corners, return_inverse=True)
    steps = np.zeros(len(distinct) + 1, dtype=np.int64)
    np.add.at(steps, index + 1, part.changes)
    steps[0] = part.start_errors
    return ErrorCurve(distinct, np.cumsum(steps))


class _Lines(NamedTuple):
    """Total of each hypothesis along a line of weights, and its errors; see ``compute_error_curve``."""

    intercepts: np.ndarray
    slopes: np.ndarray
    errors: np.ndarray
    offsets: np.ndarray


class _Stretch(NamedTuple):
    """Corners of all envelopes on a stretch of the line, in no particular order."""

    corners: np.ndarray
    changes: np.ndarray
    """Change of errors at each corner."""
    start_errors: int
    end_errors: int


def _search(lines: _Lines, low: float, high: float, halvings: int, min_candidates: int) -> _Stretch:
    """Find the corners between two steps.

    A line that is nowhere above the line on top at ``low``, or nowhere above the one on top at ``high``, is
    nowhere on top in between: on a short stretch, few lists and hypotheses remain.
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
    """Position of the largest value per list; of several, the first with the largest ``tie_break``: (L,)."""
    top = values == spread_over(np.maximum.reduceat(values, offsets[:-1]), offsets)
    return first_maximum_per_list(np.where(top, tie_break, -np.inf), offsets)


def _walk(lines: _Lines, top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Follow all upper envelopes from left to right simultaneously, one corner per iteration.

    The line on top is followed by the line that crosses it first, of several by the steepest.

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
        rises = rise > 0  # a line that is not steeper than the one on top never crosses it further right
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
"""Number of random starting points around the given ones."""
START_SPREAD = 0.5
"""Standard deviation of random starting points, in natural units."""
MAX_ROUNDS = 10
"""Maximum number of passes over all directions from one starting point; a pass that gains little ends the
search."""
WINDOW = 2.0
"""Distance to search to either side of a point, in natural units."""
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
    return np.asarray(np.clip(weights + middles[best] * direction, *problem.bounds.T)), float(costs[best])


def find_step_bounds(
    problem: TuningProblem, weights: np.ndarray, direction: np.ndarray
) -> tuple[float, float]:
    """First and last step along ``direction`` from ``weights`` within the bounds and the window."""
    moving = direction != 0
    edges = (problem.bounds[moving] - weights[moving, None]) / direction[moving, None]  # (M, 2)
    return max(-WINDOW, float(edges.min(axis=1).max())), min(WINDOW, float(edges.max(axis=1).min()))


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


LOG_SHARPNESS_BOUND = 5.0
"""Distance that ln κ may move from the start, at which totals vary by about 1 within a list."""
MAX_ITERATIONS = 60


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
    problem: TuningProblem, strength: float, start: Solution | None = None
) -> Solution:
    """Find weights with few expected errors, close to the start of the problem.

    Args:
        strength: number of errors that a move of one natural unit must save; above 0.
        start: where to begin the descent; None for the start of the problem.
    """
    from scipy.optimize import minimize  # a server never tunes

    objective = ExpectedErrors(problem, strength)
    free = objective.free
    start = start or Solution(problem.start)
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
    return Solution(weights, problem.mixture, float(result.x[-1]))


Objective = Literal["start", "errors", "expected errors"]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to fit weights."""

    objective: Objective
    """The quantity to minimise; ``start`` changes nothing."""
    strength: float = 0.0
    """Errors that a move of one natural unit must save, in units of the square root of the errors at the
    start: about the standard deviation of their number."""

    def __str__(self) -> str:
        is_start = self.objective == "start"
        return self.objective if is_start else f"{self.objective}, strength {self.strength:g}"


STRENGTHS = (3.0, 0.3, 0.03)
METHODS = (
    Method("start"),
    *(Method(objective, strength) for strength in STRENGTHS for objective in ("expected errors", "errors")),
)  # fmt: skip
"""Methods to choose from, the most cautious first: it is preferred where several do equally well."""
MAX_MIXTURE_ROUNDS = 3
"""Maximum number of times that λ is chosen again for changed weights."""


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
            return minimise_expected_errors(problem, strength, start)

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
