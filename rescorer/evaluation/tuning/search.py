"""Search for weights with few errors, and estimate the errors on unseen lists by leaving groups out.

The components of all hypotheses are computed beforehand; everything here is arithmetic on arrays. Errors are
minimised exactly along one weight at a time (Och, 2003), from the start weights and from a few random points
around them.

Small tuning sets overfit: on 80 lists, four tuned weights can do worse on new lists than no tuning at all.
Therefore a move away from the start weights must save enough errors (``TuningSettings.move_penalty``), and a
weight is set to the middle of the interval in which the errors are lowest. Report the errors of
``leave_one_group_out``; if they are not lower than those of the start weights, keep the start weights. The
errors that ``tune`` returns are measured on its own lists and therefore optimistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.evaluation.tuning.line_search import compute_error_curve
from rescorer.ranking import TIE_DECIMALS


@dataclass(frozen=True, slots=True)
class TuningList:
    """One list as arrays; rows are in the recogniser's order, which breaks ties."""

    components: np.ndarray
    """(N, K) float64, unweighted: streams, LM log-probabilities, word and OOV counts."""
    errors: np.ndarray
    """(N,) int64, errors of each hypothesis, in words or characters."""


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """Settings of the search for weights."""

    free: tuple[int, ...] | None = None
    """Indices of the weights that may change; None for all but the first, since only the proportions between
    weights matter."""
    bounds: tuple[tuple[float, float], ...] | None = None
    """Lowest and highest value of each weight; None for no bounds."""
    move_penalty: float = 1.0
    """Number of errors that moving a weight must save, per squared natural unit of distance.

    One natural unit changes the totals of a list by about as much as they vary within the list.
    """
    restarts: int = 4
    """Number of random start points around the given one, in addition to it."""
    max_rounds: int = 20
    """Maximum number of passes over all weights from one start; a pass without change ends the search."""
    seed: int = 1
    """Random seed of the start points."""


@dataclass(frozen=True, slots=True)
class TuningResult:
    """Tuned weights, and their errors on the lists they were tuned on (optimistic)."""

    weights: tuple[float, ...]
    errors: int
    start_errors: int


@dataclass(frozen=True, slots=True)
class Fold:
    """One held-out group."""

    group: str
    lists: tuple[int, ...]
    """Indices of the lists of the group."""
    weights: tuple[float, ...]
    """Weights tuned on the lists of other groups."""
    errors: int
    """Errors of these weights on the lists of the group."""
    start_errors: int


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The effect of tuning on unseen lists."""

    folds: tuple[Fold, ...]
    chosen: tuple[int, ...]
    """For each list, the index of the hypothesis that the weights of the list's fold rank first."""

    @property
    def errors(self) -> int:
        return sum(fold.errors for fold in self.folds)

    @property
    def start_errors(self) -> int:
        return sum(fold.start_errors for fold in self.folds)


def choose_best(components: np.ndarray, weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Find the hypothesis with the highest total; ties go to the first, as in ranking.

    Args:
        components: (..., N, K).

    Returns:
        (...,) int64 indices.
    """
    totals = components @ np.asarray(weights, dtype=np.float64)
    chosen: np.ndarray = np.round(totals, TIE_DECIMALS).argmax(axis=-1)
    return chosen


def tune(
    lists: Sequence[TuningList], start: Sequence[float], settings: TuningSettings | None = None
) -> TuningResult:
    """Find weights with few errors on ``lists``, staying close to ``start`` where that adds no errors.

    Raises:
        ConfigError: there are no lists, array shapes do not match, or the settings contradict the arrays.
    """
    settings = settings or TuningSettings()
    _check(lists, start, settings)
    return _tune(_Problem.from_lists(lists, start), settings)


def leave_one_group_out(
    lists: Sequence[TuningList],
    groups: Sequence[str],
    start: Sequence[float],
    settings: TuningSettings | None = None,
    sentences: Sequence[str] | None = None,
) -> CrossValidation:
    """Hold out each group in turn: tune on all other groups and count errors on the held-out one.

    Args:
        groups: group of each list, such as its speaker.
        sentences: reference of each list; lists that share a sentence with the held-out group are not used
            for tuning either.

    Raises:
        ConfigError: as in ``tune``, or no lists remain for tuning when some group is held out.
    """
    settings = settings or TuningSettings()
    _check(lists, start, settings)
    if len(groups) != len(lists) or (sentences is not None and len(sentences) != len(lists)):
        raise ConfigError(
            f"expected a group and a sentence for each of {len(lists)} lists, got {len(groups)} groups"
            + (f" and {len(sentences)} sentences" if sentences is not None else "")
        )
    problem = _Problem.from_lists(lists, start)
    list_groups = np.array(groups, dtype=object)
    list_sentences = np.arange(len(lists)) if sentences is None else np.array(sentences, dtype=object)
    start_errors = problem.count_errors(problem.start)
    chosen = np.zeros(len(lists), dtype=np.int64)
    folds = []
    for group in dict.fromkeys(groups):
        is_held_out = list_groups == group
        held_out_sentences = set(list_sentences[is_held_out])
        is_shared = np.array([sentence in held_out_sentences for sentence in list_sentences])
        tuning_lists = ~is_shared & ~is_held_out
        if not tuning_lists.any():
            raise ConfigError(f"no lists are left to tune on without group {group!r}")
        weights = _tune(problem.select(tuning_lists), settings).weights
        indices = np.flatnonzero(is_held_out)
        chosen[indices] = choose_best(problem.components[indices], weights)
        errors = int(problem.errors[indices, chosen[indices]].sum())
        folds.append(Fold(group, tuple(indices.tolist()), weights, errors, int(start_errors[indices].sum())))
    return CrossValidation(tuple(folds), tuple(chosen.tolist()))


@dataclass(frozen=True, slots=True)
class _Problem:
    """All lists in padded arrays; short lists are padded with copies of their first hypothesis."""

    components: np.ndarray  # (L, N, K)
    errors: np.ndarray  # (L, N)
    start: np.ndarray  # (K,)
    units: np.ndarray  # (K,) natural unit of each weight; 0 if it makes no difference in any list

    @classmethod
    def from_lists(cls, lists: Sequence[TuningList], start: Sequence[float]) -> _Problem:
        longest = max(len(item.errors) for item in lists)
        rows = [
            np.r_[np.arange(len(item.errors)), np.zeros(longest - len(item.errors), int)] for item in lists
        ]
        components = np.stack([item.components[index] for item, index in zip(lists, rows, strict=True)])
        errors = np.stack([item.errors[index] for item, index in zip(lists, rows, strict=True)])
        weights = np.array(start, dtype=np.float64)
        spread = np.mean([item.components.std(axis=0) for item in lists], axis=0)  # (K,)
        total_spread = np.mean([(item.components @ weights).std() for item in lists])
        units = np.divide(total_spread or 1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        return cls(components.astype(np.float64), errors.astype(np.int64), weights, units)

    def select(self, lists: np.ndarray) -> _Problem:
        """The same problem for some of the lists, given as a mask or as indices."""
        return _Problem(self.components[lists], self.errors[lists], self.start, self.units)

    def count_errors(self, weights: np.ndarray) -> np.ndarray:
        """Errors of the top hypothesis of each list, (L,)."""
        top = choose_best(self.components, weights)
        errors: np.ndarray = self.errors[np.arange(len(self.errors)), top]
        return errors

    def cost(self, weights: np.ndarray, move_penalty: float) -> float:
        """Errors plus the penalty for the distance from the start weights."""
        moved = np.divide(weights - self.start, self.units, out=np.zeros_like(weights), where=self.units > 0)
        return float(self.count_errors(weights).sum() + move_penalty * (moved**2).sum())


def _tune(problem: _Problem, settings: TuningSettings) -> TuningResult:
    bounds = np.array(settings.bounds or [(-np.inf, np.inf)] * len(problem.start))  # (K, 2)
    may_move = range(1, len(problem.start)) if settings.free is None else settings.free
    free = [k for k in may_move if problem.units[k] > 0]
    random = np.random.default_rng(settings.seed)
    best, best_cost = problem.start, problem.cost(problem.start, settings.move_penalty)
    for attempt in range(1 + settings.restarts):
        weights = problem.start.copy()
        if attempt:
            weights[free] += random.normal(size=len(free)) * problem.units[free]
            weights = np.clip(weights, *bounds.T)
        weights = _descend(problem, weights, free, bounds, settings)
        cost = problem.cost(weights, settings.move_penalty)
        if cost < best_cost:
            best, best_cost = weights, cost
    return TuningResult(
        weights=tuple(best.tolist()),
        errors=int(problem.count_errors(best).sum()),
        start_errors=int(problem.count_errors(problem.start).sum()),
    )


def _descend(
    problem: _Problem, weights: np.ndarray, free: Sequence[int], bounds: np.ndarray, settings: TuningSettings
) -> np.ndarray:
    """Set each weight in turn to its best value, until a full pass changes nothing."""
    cost = problem.cost(weights, settings.move_penalty)
    for _ in range(settings.max_rounds):
        cost_before = cost
        for k in free:
            moved = weights.copy()
            moved[k] = _best_value(problem, weights, k, bounds[k], settings.move_penalty)
            moved_cost = problem.cost(moved, settings.move_penalty)
            if moved_cost < cost:
                weights, cost = moved, moved_cost
        if cost == cost_before:
            break
    return weights


def _best_value(
    problem: _Problem, weights: np.ndarray, k: int, bounds: np.ndarray, move_penalty: float
) -> float:
    """Find the cheapest value of weight ``k``: the middle of an interval between two corners.

    Among equally cheap intervals, the widest is used; among equally wide ones, the one nearest to the start.
    """
    others = weights.copy()
    others[k] = 0.0
    curve = compute_error_curve(problem.components @ others, problem.components[..., k], problem.errors)
    if not len(curve.corners):
        return float(weights[k])
    unit, start = problem.units[k], problem.start[k]
    ends = [curve.corners[0] - unit, *curve.corners, curve.corners[-1] + unit]
    edges = np.clip(ends, *bounds)  # (C + 2,)
    widths = np.diff(edges)
    usable = widths > MIN_INTERVAL_WIDTH * unit
    if not usable.any():
        return float(weights[k])
    middles = (edges[:-1] + edges[1:])[usable] / 2
    distances = np.abs(middles - start) / unit
    costs = curve.errors[usable] + move_penalty * distances**2
    return float(middles[np.lexsort((distances, -widths[usable], costs))[0]])


MIN_INTERVAL_WIDTH = 1e-4
"""Smallest usable width in natural units; a narrower interval cannot be distinguished from a tie."""


def _check(lists: Sequence[TuningList], start: Sequence[float], settings: TuningSettings) -> None:
    if not lists:
        raise ConfigError("no lists to tune on")
    k = len(start)
    for number, item in enumerate(lists):
        shape = item.components.shape
        if len(shape) != 2 or shape[1] != k or not shape[0] or item.errors.shape != shape[:1]:
            raise ConfigError(
                f"list {number}: components {shape}, errors {item.errors.shape}; expected (N, {k}) and (N,)"
            )
        if not np.isfinite(item.components).all():
            raise ConfigError(f"list {number}: components are not all finite")
    if settings.free is not None and not set(settings.free) <= set(range(k)):
        raise ConfigError(f"free weights {settings.free}; expected indices below {k}")
    if settings.bounds is not None:
        if len(settings.bounds) != k:
            raise ConfigError(f"{len(settings.bounds)} bounds for {k} weights")
        for (low, high), weight in zip(settings.bounds, start, strict=True):
            if not low <= weight <= high:
                raise ConfigError(f"the start weight {weight} is outside its bounds {low} to {high}")
