"""Owns the search for weights that make few errors, and the honest figure for it: leave one group out.

Components are computed beforehand; everything here is arithmetic on arrays. Errors are minimised exactly
along one weight after the other (Och, 2003), from the start weights and from some places around them.

Small tuning sets overfit: on 80 lists four tuned weights can do worse on new lists than no tuning at all.
Therefore a move away from the start weights has to pay (``TuningSettings.stay``), of equally good stretches
the middle is taken, and ``leave_one_group_out`` is the figure to report; where it is no better than the start
weights, keep those. The errors that ``tune`` returns are those on its own lists, and optimistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.evaluation.tuning.line_search import error_curve
from rescorer.ranking import TIE_DECIMALS


@dataclass(frozen=True, slots=True)
class TuningList:
    """One list as tuning sees it; rows in the recogniser's order, which settles ties."""

    components: np.ndarray
    """(N, K) float64, unweighted: streams, LM log-probabilities, word and OOV counts."""
    errors: np.ndarray
    """(N,) int64, errors of each hypothesis, in words or characters."""


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """How weights are searched for."""

    free: tuple[int, ...] | None = None
    """Which weights may move; None: all but the first, since only their proportions matter."""
    bounds: tuple[tuple[float, float], ...] | None = None
    """Lowest and highest value of each weight; None: none."""
    stay: float = 1.0
    """Errors that a weight's move must save, times the square of the move in natural units: one unit changes
    the totals of a list by about as much as they differ within it."""
    restarts: int = 4
    """Starts around the given one, beside it."""
    rounds: int = 20
    """Most turns through all weights from one start; the search ends when a turn changes nothing."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Tuned:
    """Weights found, and what they do to the lists they were found on (optimistic)."""

    weights: tuple[float, ...]
    errors: int
    start_errors: int


@dataclass(frozen=True, slots=True)
class Fold:
    """One group held out."""

    group: str
    lists: tuple[int, ...]
    """Indices of the group's lists."""
    weights: tuple[float, ...]
    """Tuned without them."""
    errors: int
    """Of those weights on the group's lists."""
    start_errors: int


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """What tuning is worth on lists that it has not seen."""

    folds: tuple[Fold, ...]
    chosen: tuple[int, ...]
    """The hypothesis that each list's held-out weights put first."""

    @property
    def errors(self) -> int:
        return sum(fold.errors for fold in self.folds)

    @property
    def start_errors(self) -> int:
        return sum(fold.start_errors for fold in self.folds)


def choose(components: np.ndarray, weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Index of the hypothesis with the highest total, ties to the first, as ranking settles them.

    Args:
        components: (..., N, K).

    Returns:
        (...,) int64.
    """
    chosen: np.ndarray = np.round(components @ np.asarray(weights, dtype=np.float64), TIE_DECIMALS).argmax(
        axis=-1
    )
    return chosen


def tune(
    lists: Sequence[TuningList], start: Sequence[float], settings: TuningSettings | None = None
) -> Tuned:
    """Weights with few errors on ``lists``, near ``start`` where that costs nothing.

    Raises:
        ConfigError: no lists, arrays whose shapes do not fit, or settings that contradict them.
    """
    settings = settings or TuningSettings()
    _check(lists, start, settings)
    return _tune(_Problem.of(lists, start), settings)


def leave_one_group_out(
    lists: Sequence[TuningList],
    groups: Sequence[str],
    start: Sequence[float],
    settings: TuningSettings | None = None,
    sentences: Sequence[str] | None = None,
) -> CrossValidation:
    """Tunes on all groups but one and counts errors on that one, in turn.

    Args:
        groups: of each list, such as its speaker.
        sentences: what each list's reference says; lists that share a sentence with the held-out group
            are not tuned on either.

    Raises:
        ConfigError: as ``tune`` does, or nothing is left to tune on without some group.
    """
    settings = settings or TuningSettings()
    _check(lists, start, settings)
    if len(groups) != len(lists) or (sentences is not None and len(sentences) != len(lists)):
        raise ConfigError(f"expected a group and a sentence for each of {len(lists)} lists")
    problem = _Problem.of(lists, start)
    of_group = np.array(groups, dtype=object)
    of_sentence = np.arange(len(lists)) if sentences is None else np.array(sentences, dtype=object)
    before = problem.errors_of(problem.start)
    chosen = np.zeros(len(lists), dtype=np.int64)
    folds = []
    for group in dict.fromkeys(groups):
        held_out = of_group == group
        shared = set(of_sentence[held_out])
        kept = np.array([each not in shared for each in of_sentence]) & ~held_out
        if not kept.any():
            raise ConfigError(f"no lists are left to tune on without group {group!r}")
        weights = _tune(problem.only(kept), settings).weights
        there = np.flatnonzero(held_out)
        chosen[there] = choose(problem.components[there], weights)
        errors = int(problem.errors[there, chosen[there]].sum())
        folds.append(Fold(group, tuple(there.tolist()), weights, errors, int(before[there].sum())))
    return CrossValidation(tuple(folds), tuple(chosen.tolist()))


@dataclass(frozen=True, slots=True)
class _Problem:
    """All lists as one block; a short list is filled up with copies of its first hypothesis."""

    components: np.ndarray  # (L, N, K)
    errors: np.ndarray  # (L, N)
    start: np.ndarray  # (K,)
    units: np.ndarray  # (K,) natural unit of each weight; 0 where it makes no difference in any list

    @classmethod
    def of(cls, lists: Sequence[TuningList], start: Sequence[float]) -> _Problem:
        longest = max(len(each.errors) for each in lists)
        fill = [
            np.r_[np.arange(len(each.errors)), np.zeros(longest - len(each.errors), int)] for each in lists
        ]
        components = np.stack([each.components[index] for each, index in zip(lists, fill, strict=True)])
        errors = np.stack([each.errors[index] for each, index in zip(lists, fill, strict=True)])
        weights = np.array(start, dtype=np.float64)
        spread = np.mean([each.components.std(axis=0) for each in lists], axis=0)  # (K,)
        of_totals = np.mean([(each.components @ weights).std() for each in lists])
        units = np.divide(of_totals or 1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        return cls(components.astype(np.float64), errors.astype(np.int64), weights, units)

    def only(self, kept: np.ndarray) -> _Problem:
        return _Problem(self.components[kept], self.errors[kept], self.start, self.units)

    def errors_of(self, weights: np.ndarray) -> np.ndarray:
        """Of the hypothesis on top of each list, (L,)."""
        errors: np.ndarray = self.errors[np.arange(len(self.errors)), choose(self.components, weights)]
        return errors

    def cost(self, weights: np.ndarray, stay: float) -> float:
        """Errors, and what the way from the start costs."""
        moved = np.divide(weights - self.start, self.units, out=np.zeros_like(weights), where=self.units > 0)
        return float(self.errors_of(weights).sum() + stay * (moved**2).sum())


def _tune(problem: _Problem, settings: TuningSettings) -> Tuned:
    bounds = np.array(settings.bounds or [(-np.inf, np.inf)] * len(problem.start))  # (K, 2)
    may_move = range(1, len(problem.start)) if settings.free is None else settings.free
    free = [k for k in may_move if problem.units[k] > 0]
    random = np.random.default_rng(settings.seed)
    best, best_cost = problem.start, problem.cost(problem.start, settings.stay)
    for attempt in range(1 + settings.restarts):
        weights = problem.start.copy()
        if attempt:
            weights[free] += random.normal(size=len(free)) * problem.units[free]
            weights = np.clip(weights, *bounds.T)
        weights = _descend(problem, weights, free, bounds, settings)
        cost = problem.cost(weights, settings.stay)
        if cost < best_cost:
            best, best_cost = weights, cost
    return Tuned(
        weights=tuple(best.tolist()),
        errors=int(problem.errors_of(best).sum()),
        start_errors=int(problem.errors_of(problem.start).sum()),
    )


def _descend(
    problem: _Problem, weights: np.ndarray, free: Sequence[int], bounds: np.ndarray, settings: TuningSettings
) -> np.ndarray:
    """One weight after the other to its best value, until a turn changes nothing."""
    cost = problem.cost(weights, settings.stay)
    for _ in range(settings.rounds):
        cost_before = cost
        for k in free:
            moved = weights.copy()
            moved[k] = _best_value(problem, weights, k, bounds[k], settings.stay)
            moved_cost = problem.cost(moved, settings.stay)
            if moved_cost < cost:
                weights, cost = moved, moved_cost
        if cost == cost_before:
            break
    return weights


def _best_value(problem: _Problem, weights: np.ndarray, k: int, bounds: np.ndarray, stay: float) -> float:
    """The value of weight ``k`` with the lowest cost: the middle of the stretch between two corners; of
    equally cheap ones the widest, of equally wide ones the nearest to the start."""
    others = weights.copy()
    others[k] = 0.0
    curve = error_curve(problem.components @ others, problem.components[..., k], problem.errors)
    if not len(curve.corners):
        return float(weights[k])
    unit, start = problem.units[k], problem.start[k]
    ends = [curve.corners[0] - unit, *curve.corners, curve.corners[-1] + unit]
    edges = np.clip(ends, *bounds)  # (C + 2,)
    widths = np.diff(edges)
    usable = widths > NARROWEST * unit
    if not usable.any():
        return float(weights[k])
    middles = (edges[:-1] + edges[1:])[usable] / 2
    away = np.abs(middles - start) / unit
    costs = curve.errors[usable] + stay * away**2
    return float(middles[np.lexsort((away, -widths[usable], costs))[0]])


NARROWEST = 1e-4
"""Of a natural unit: a stretch between two corners that is narrower could not be told from a tie."""


def _check(lists: Sequence[TuningList], start: Sequence[float], settings: TuningSettings) -> None:
    if not lists:
        raise ConfigError("no lists to tune on")
    k = len(start)
    for number, each in enumerate(lists):
        shape = each.components.shape
        if len(shape) != 2 or shape[1] != k or not shape[0] or each.errors.shape != shape[:1]:
            raise ConfigError(
                f"list {number}: components {shape}, errors {each.errors.shape}; expected (N, {k}) and (N,)"
            )
        if not np.isfinite(each.components).all():
            raise ConfigError(f"list {number}: components are not all finite")
    if settings.free is not None and not set(settings.free) <= set(range(k)):
        raise ConfigError(f"free weights {settings.free}; expected indices below {k}")
    if settings.bounds is not None:
        if len(settings.bounds) != k:
            raise ConfigError(f"{len(settings.bounds)} bounds for {k} weights")
        for (low, high), weight in zip(settings.bounds, start, strict=True):
            if not low <= weight <= high:
                raise ConfigError(f"the start weight {weight} is outside its bounds {low} to {high}")
