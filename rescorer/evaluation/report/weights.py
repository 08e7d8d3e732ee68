"""Errors along each weight and over two of them, around the chosen weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.evaluation.comparison.rankings import rerank
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.tuned import MixtureScores, find_streams
from rescorer.evaluation.report.data import Range, ShareCurve, Surface, WeightCurve
from rescorer.evaluation.tuning.mixture_choices import scale_shares
from rescorer.evaluation.weight_search.line_search import ErrorCurve, compute_error_curve
from rescorer.evaluation.weight_search.problem import find_units
from rescorer.score_combination import EMPTY, OOV, RERANKER, WORDS, get_component, state_defaults, totals
from rescorer.types import Weights

SHOWN_UNITS = 1.0
"""Distance from the chosen weight to the ends of its curve in natural units. One unit changes the totals of a
list by about as much as they vary within the list."""
FOLD_MARGIN = 0.05
"""Least distance from a fold's choice to the end of the curve, as a share of its width."""
GRID_SIZE = 41
"""Number of values of each weight of a surface."""
MAX_CORNERS = 2000
"""Largest number of steps of a curve in the report; more cannot be drawn."""


def list_weights(weights: Weights) -> dict[str, float]:
    """Weights by the names that ``-w`` takes, such as ``acoustic``, ``lm:mixture``, ``word`` and ``oov``."""
    models = {f"lm:{name}": value for name, value in weights.lm.items()}
    counts = {"word": weights.word, "oov": weights.oov, "empty": weights.empty}
    rerankers = {f"{RERANKER}{name}": value for name, value in weights.rerankers.items()}
    return {**weights.streams, **models, **counts, **rerankers, **weights.components}


@dataclass(frozen=True)
class WeightProblem:
    """The hypotheses of all lists that take part in rankings; short lists are padded with copies of their
    first."""

    base: np.ndarray
    """(L, N) part of the totals whose weights stay as they are."""
    components: Mapping[str, np.ndarray]
    """(L, N) unweighted, by the name of the weight."""
    errors: np.ndarray
    """(L, N) int64."""
    chosen: Mapping[str, float]
    """Chosen value of each weight that has components."""

    def totals(self, without: Sequence[str] = ()) -> np.ndarray:
        """Totals under the chosen weights, (L, N), without the parts of some weights."""
        parts = (
            self.chosen[name] * values for name, values in self.components.items() if name not in without
        )
        return sum(parts, self.base)

    def unit(self, name: str) -> float:
        """Natural unit of a weight, as in tuning; 0 if it makes no difference in any list."""
        units = find_units(self.components[name].reshape(1, -1), self.totals().ravel(), self.offsets)
        return float(units[0])

    @property
    def offsets(self) -> np.ndarray:
        """Where each list begins in the flattened arrays, (L + 1,)."""
        n_lists, longest = self.errors.shape
        return np.arange(n_lists + 1) * longest

    def error_curve(self, intercepts: np.ndarray, slopes: np.ndarray, shown: Range) -> ErrorCurve:
        """Errors for the values of a weight in a range; intercepts and slopes are (L, N)."""
        arrays = (intercepts.ravel(), slopes.ravel(), self.errors.ravel())
        return compute_error_curve(*arrays, self.offsets, *shown)


def make_problem(scored: Sequence[ScoredList], weights: Weights) -> WeightProblem:
    """Arrange the lists for weights that may vary: of streams, language models and counts, also those
    that are 0, and of rerankers in use.

    One weight may stay as it is, since only the proportions between weights matter: that of the first stream.
    Of merged hypotheses, the weights of all streams stay, on which their probabilities depend.
    """
    used = [name for name, value in weights.streams.items() if value]
    fixed = used if any(item.selection.merge for item in scored) else used[:1]
    streams = {name: weights.streams[name] for name in fixed}
    stated = state_defaults(weights)  # of phrases, which follow from the models otherwise
    base_weights = replace(
        stated, streams=streams, lm={}, word=0.0, oov=0.0, empty=0.0, rerankers={}, components={}
    )
    unused = [] if any(item.selection.merge for item in scored) else find_common_streams(scored, weights)
    names = {name: name for name in (*used, *unused) if name not in fixed}
    names |= {f"lm:{name}": name for name in weights.lm if name in scored[0].components}
    names |= {"word": WORDS, "oov": OOV, "empty": EMPTY}
    names |= {f"{RERANKER}{name}": f"{RERANKER}{name}" for name, value in weights.rerankers.items() if value}
    names |= {name: name for name, value in weights.components.items() if value}
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("", "errors", *names)}
    longest = max(len(item.words) for item in scored)
    for item in scored:
        order, base = item.selection.order(item.words, totals(item.components, base_weights))
        kept = sorted(order)
        index = np.array(kept + kept[:1] * (longest - len(kept)))
        rows[""].append(base[index])
        rows["errors"].append(np.array([counts.errors for counts in item.evaluated.hypotheses])[index])
        for name, component in names.items():
            rows[name].append(get_component(item.components, component)[index])
    arrays = {name: np.stack(values) for name, values in rows.items()}
    values = list_weights(weights)
    components = {name: arrays[name] for name in names}
    chosen = {name: values.get(name, 0.0) for name in names}
    return WeightProblem(arrays[""], components, arrays["errors"], chosen)


def find_common_streams(scored: Sequence[ScoredList], weights: Weights) -> list[str]:
    """Streams that all lists have."""
    return [
        name
        for name in find_streams(scored[0].components, weights)
        if all(name in item.components for item in scored)
    ]


def describe_curves(problem: WeightProblem, folds: Sequence[Weights]) -> tuple[WeightCurve, ...]:
    """The errors along each weight that makes a difference, the others as chosen."""
    curves = []
    for name, values in problem.components.items():
        shown = _find_range(problem, name, folds)
        if shown is None:
            continue
        curve = problem.error_curve(problem.totals(without=[name]), values, shown)
        corners, errors = _cut(curve, *shown)
        folds_chose = tuple(list_weights(fold).get(name, 0.0) for fold in folds)
        curves.append(WeightCurve(name, problem.chosen[name], corners, errors, shown, folds_chose))
    return tuple(curves)


def describe_share_curves(
    scored: Sequence[ScoredList], weights: Weights, folds: Sequence[Weights], mixture: MixtureScores
) -> tuple[ShareCurve, ...]:
    """The errors at each λ that tuning chose from, the other weights as chosen, unless all are the same.

    Of two models, whose λ add up to 1, there is one curve, that of the second.
    """
    (start, *caches), curves = mixture.choices[0], []
    for index, model in list(enumerate(mixture.models))[1 if len(start) == 2 else 0 :]:
        choices = {
            shares[index]: choice
            for choice, (shares, *own_caches) in enumerate(mixture.choices)
            if own_caches == caches and np.allclose(shares, scale_shares(start, index, shares[index]))
        }
        values = sorted(choices)
        errors = [
            sum(rerank(item, weights).system.errors for item in mixture.apply(scored, choices[value]))
            for value in values
        ]
        if min(errors) < max(errors):
            folds_chose = tuple(fold.mixture[model] for fold in folds)
            curves.append(ShareCurve(model, start[index], tuple(values), tuple(errors), folds_chose))
    return tuple(curves)


def describe_surface(problem: WeightProblem, folds: Sequence[Weights]) -> Surface | None:
    """Errors on a grid of a language model's weight and that of a word; None if there is no such model.

    Of several models, it is the first one whose weight is not 0, if any.
    """
    models = [name for name in problem.components if name.startswith("lm:")]
    models.sort(key=lambda name: problem.chosen[name] == 0.0)
    ranges = [_find_range(problem, name, folds) for name in (*models[:1], "word")]
    if len(ranges) < 2 or ranges[0] is None or ranges[1] is None:
        return None
    lm, word = models[0], "word"
    x, y = (np.linspace(*shown, GRID_SIZE) for shown in ranges if shown)
    base = problem.totals(without=[lm, word])
    columns = [
        problem.error_curve(
            base + value * problem.components[lm], problem.components[word], (y[0], y[-1])
        ).at(y)
        for value in x
    ]
    errors = np.stack(columns, axis=1)  # (Y, X)
    chose = (list_weights(fold) for fold in folds)
    return Surface(
        lm,
        word,
        tuple(x.tolist()),
        tuple(y.tolist()),
        tuple(tuple(row) for row in errors.tolist()),
        (problem.chosen[lm], problem.chosen[word]),
        tuple((fold[lm], fold[word]) for fold in chose),
    )


def _find_range(problem: WeightProblem, name: str, folds: Sequence[Weights]) -> Range | None:
    """Values to show: around the chosen one and those of the folds; a language model that none of them
    subtracts is shown from 0."""
    unit = SHOWN_UNITS * problem.unit(name)
    if not unit:
        return None
    values = [problem.chosen[name], *(list_weights(fold).get(name, 0.0) for fold in folds)]
    low, high = min(values[0] - unit, *values), max(values[0] + unit, *values)
    margin = FOLD_MARGIN * (high - low)
    low, high = min(low, min(values) - margin), max(high, max(values) + margin)
    return (max(low, 0.0) if name.startswith("lm:") and min(values) >= 0 else low), high


def _cut(curve: ErrorCurve, low: float, high: float) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Corners within a range and the errors between them; of too many, the last one of each stretch."""
    start, end = np.searchsorted(curve.corners, [low, high])
    corners, errors = curve.corners[start:end], curve.errors[start : end + 1]
    if len(corners) > MAX_CORNERS:
        stretch = ((corners - low) / (high - low) * MAX_CORNERS).astype(np.int64)
        is_last = np.append(stretch[1:] != stretch[:-1], True)
        corners, errors = corners[is_last], np.append(errors[:1], errors[1:][is_last])
    return tuple(corners.tolist()), tuple(errors.tolist())
