"""Tune weights by nested cross-validation, judge them on held-out lists, and report the result.

A held-out list takes no part in tuning the weights that rank it, nor in choosing the objective and strength
of tuning (Varma and Simon, 2006, "Bias in error estimation when using cross-validation for model selection").
The tuned weights are used only if the one-sided lower bound of 97.5 % of the held-out gain is above 0.
Otherwise the start is kept, and a sentence says why.

Errors are a step function of the weights, so that neighbouring weights differ by chance. Other weights are as
good as the tuned ones, within the noise, if they make more errors on the same lists by at most 1.96 standard
errors of the difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from rescorer.decision import distance_matrix, fewest_errors_first
from rescorer.errors import ConfigError, LimitExceeded
from rescorer.evaluation.folds import (
    CACHE_SHARES,
    NEURAL_CACHES,
    Folds,
    Parameters,
    TuningList,
    build_problem,
)
from rescorer.evaluation.list_errors import (
    describe_p,
    explain_unknown,
    format_gain,
    gain_to_dict,
    interval_to_list,
    to_percent,
)
from rescorer.evaluation.statistics import (
    MIN_UNITS_FOR_INTERVAL,
    Gain,
    Interval,
    bootstrap,
    choose_units,
    units_needed,
)
from rescorer.evaluation.weight_search import (
    METHODS,
    STRENGTHS,
    ExpectedErrors,
    Fitter,
    Method,
    Solution,
    TuningProblem,
    find_step_bounds,
)
from rescorer.progress import ProgressTask, track
from rescorer.ranking import posteriors
from rescorer.runtime import count_cpus
from rescorer.trie import Words
from rescorer.types import ErrorUnit, NBestList, Weights
from rescorer.weights import CACHE, NEURAL_CACHE, WORDS

TEMPERATURES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Temperatures of minimum Bayes risk that are tried in addition to that of the start."""
MAX_DISTANCES = 1 << 28
"""Largest number of distances between hypotheses that are kept for all lists together: 512 MiB."""


class BayesRiskErrors:
    """Counts the errors of minimum Bayes risk under many weights, and keeps distances between hypotheses for
    this.

    Args:
        words: canonical words of each hypothesis of each list.
        errors: (N,) errors of the hypotheses of each list.
        unit: unit in which errors are expected.
    """

    def __init__(
        self, words: Sequence[Sequence[Words]], errors: Sequence[np.ndarray], unit: ErrorUnit = "word"
    ) -> None:
        self._words, self._errors, self._unit = words, errors, unit
        self._distances: dict[int, np.ndarray | None] = {}
        self._n_kept = 0

    def count(
        self, index: int, totals: np.ndarray, temperatures: Sequence[float] = TEMPERATURES
    ) -> np.ndarray:
        """Count the errors of the choice from list ``index`` at each temperature, (T,) int64.

        If the list is too long to be compared, the hypothesis with the largest total is chosen.
        """
        errors, distances = self._errors[index], self._find_distances(index)
        if distances is None:
            return np.full(len(temperatures), errors[np.argmax(totals)])
        expected = (distances @ posteriors(totals, temperature) for temperature in temperatures)
        return np.array([errors[fewest_errors_first(risks, totals)[0]] for risks in expected])

    def _find_distances(self, index: int) -> np.ndarray | None:
        if index in self._distances:
            return self._distances[index]
        distances: np.ndarray | None
        try:
            distances = distance_matrix(self._words[index], self._unit).astype(np.uint16)
        except LimitExceeded:
            distances = None
        size = 0 if distances is None else distances.size
        if self._n_kept + size <= MAX_DISTANCES:
            self._n_kept += size
            self._distances[index] = distances
        return distances


MIN_PARALLEL_HYPOTHESES = 100_000
"""With at least this many hypotheses, folds are fitted in several threads. Small arrays gain nothing by
that."""

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
    """The result of tuning without each fold in turn."""

    folds: tuple[FoldResult, ...]
    errors: np.ndarray
    """(L,) int64, errors of each list under weights that were fitted without its fold."""
    start_errors: np.ndarray
    """(L,) int64, errors of each list under the weights of the start."""


def choose_method(
    problem: TuningProblem,
    folds: Folds,
    methods: Sequence[Method] = METHODS,
    task: ProgressTask | None = None,
) -> Method:
    """Choose the most cautious method that is, within chance, as good as the best one on held-out folds.

    This is the one-standard-error rule (Breiman et al., 1984). A method with fewer errors than a more
    cautious one is preferred only if the difference exceeds one standard error, computed over units (see
    ``Folds``). With fewer than two units, methods cannot be judged, and the first one is returned.

    Args:
        methods: methods to choose from, the most cautious one first.
        task: progress that advances by one for each fold.
    """
    if folds.n_folds < 2:
        return methods[0]
    errors = np.zeros((len(methods), problem.n_lists), dtype=np.int64)

    def count(fold: int) -> None:
        tuning, held_out = folds.split(fold)
        if len(tuning):
            fitter, judged = Fitter(problem.select(tuning)), problem.select(held_out)
            errors[:, held_out] = [fitter.fit(method).list_errors(judged) for method in methods]
        if task is not None:
            task.advance()

    _map(count, range(folds.n_folds), problem)
    return methods[choose_cautious(errors, folds.unit)]


def choose_cautious(errors: np.ndarray, units: np.ndarray) -> int:
    """Return the index of the first of M methods that is as good as the best one (see ``is_as_good``).

    Args:
        errors: (M, L) int64 of each method on held-out lists, the most cautious method first.
        units: (L,) unit of each list, over which standard errors are computed.
    """
    return int(np.argmax(is_as_good(errors, units)))


def is_as_good(errors: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Tell for each method whether its errors exceed those of the best by at most one standard error: (M,)
    bool.

    The standard error is that of the difference, over units. The arguments are those of ``choose_cautious``.
    """
    best = int(np.argmin(errors.sum(axis=1)))
    _, unit = np.unique(units, return_inverse=True)
    lost = np.array([np.bincount(unit, row) for row in errors - errors[best]])  # (M, units)
    standard_errors = lost.std(axis=1, ddof=1) * np.sqrt(lost.shape[1])
    return np.asarray(lost.sum(axis=1) <= standard_errors)


def cross_validate_problem(problem: TuningProblem, folds: Folds) -> CrossValidation:
    """Hold out each fold in turn: choose a method, fit weights on the other folds, and count the errors.

    Raises:
        ConfigError: no lists are left for tuning if some fold is held out.
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
        method = choose_method(part, folds.subdivide(tuning))
        result = FoldResult(held_out, method, Fitter(part).fit(method))
        task.advance()
        return result

    with track("judging on held-out lists", "folds", folds.n_folds) as task:
        results = _map(hold_out, range(folds.n_folds), problem)
    errors = np.zeros(problem.n_lists, dtype=np.int64)
    for result in results:
        errors[result.lists] = result.solution.list_errors(problem.select(result.lists))
    return CrossValidation(tuple(results), errors, problem.list_errors(problem.start))


def fit_all(problem: TuningProblem, folds: Folds) -> tuple[Method, Solution]:
    """Choose a method by cross-validation, and fit weights on all lists."""
    inner = folds.subdivide(np.arange(problem.n_lists))
    with track("tuning", "folds", inner.n_folds) as task:
        method = choose_method(problem, inner, task=task)
    return method, Fitter(problem).fit(method)


MAX_EXPLAINED_LISTS = 500  # number of lists whose order is explained; more would tell little more


def explain_order(lists: Sequence[NBestList], own: str, normalise: Callable[[str], Words]) -> Weights:
    """Find the weights of scores, and of a word, under which the first hypotheses are most often the best.

    Args:
        own: the score whose weight is 1.
        normalise: converts texts to words.
    """
    lists = [one for one in lists if all(map(math.isfinite, chain(*one.streams.values())))]
    lists = lists[:MAX_EXPLAINED_LISTS]
    if not lists:
        return Weights("first pass", {own: 1.0}, lm={})
    shared = set.intersection(*(set(nbest.streams) for nbest in lists))
    streams = dict.fromkeys([own, *sorted(shared - {own})], 1.0)
    parameters = Parameters.choose(Weights("first pass", streams, lm={}), ("streams", "word"))
    problems = []
    for nbest in lists:
        components = {name: np.array(nbest.streams[name], dtype=np.float64) for name in streams}
        lengths = [len(normalise(hypothesis.text)) for hypothesis in nbest.hypotheses]
        is_wrong = np.arange(len(lengths)) > 0
        problems.append(TuningList({**components, WORDS: np.array(lengths, float)}, is_wrong.astype(int)))
    return parameters.apply(Fitter(build_problem(problems, parameters)).fit(Method("errors", STRENGTHS[-1])))


def _map(function: Callable[[int], T], items: Iterable[int], problem: TuningProblem) -> list[T]:
    """Apply a function to each item; use several threads if the problem's arrays are large enough."""
    n_threads = count_cpus() if len(problem.errors) >= MIN_PARALLEL_HYPOTHESES else 1
    if n_threads == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(function, items))


@dataclass(frozen=True, slots=True)
class Judgement:
    """Held-out error rates of tuned weights and of the start, and the decision between the two."""

    start_rate: float
    """Errors per reference word of the start."""
    rate: float
    """Errors per reference word of tuned weights, on held-out lists."""
    interval: Interval
    """Interval of 95 % of ``rate``."""
    gain: Gain
    n_lists: int
    unit: str
    """Whether the bootstrap draws lists or whole groups: ``list`` or ``group``."""
    n_units: int
    warning: str
    """A caveat about the intervals if there are few lists or groups; otherwise empty."""

    @property
    def is_better(self) -> bool:
        """Whether the gain is more than chance."""
        return self.gain.lower_bound > 0

    @property
    def n_lists_needed(self) -> int | None:
        """Number of lists that would show a gain of this size four times out of five.

        It is None if there is no gain, or if the standard error of the gain is unknown.
        """
        return units_needed(self.gain.gain, self.gain.standard_error, self.n_lists)

    @property
    def n_lists_for_test(self) -> int | None:
        """Number of lists that a test would need, if too few of the present lists differ between the weights.

        A test of so many lists may still not show the gain. None if enough lists differ, or if none does.
        """
        differing = self.gain.units_changed
        if not 0 < differing < MIN_UNITS_FOR_INTERVAL:
            return None
        return math.ceil(self.n_lists * MIN_UNITS_FOR_INTERVAL / differing)

    def describe_lists_needed(self) -> str:
        """Say in a sentence how many lists would show a gain of this size, or why that is not known."""
        if needed := self.n_lists_needed:
            return (
                f"a gain of this size is found four times out of five with {needed:,} lists; "
                f"these are {self.n_lists:,}"
            )
        unknown = "how many lists would show a gain of this size is not known"
        if not self.gain.gain > 0:
            return f"{unknown}, because there is no gain held out"
        reason = f"{unknown}, because {explain_unknown(self.gain, self.unit)}"
        if not (needed := self.n_lists_for_test):
            return reason
        return (
            f"{reason}: with about {needed:,} lists as many can be expected to differ; "
            f"these are {self.n_lists:,}"
        )

    def figures(self) -> dict[str, float]:
        """Return the figures to store in ``Weights.held_out``, in percent; figures that are not known are
        left out.
        """
        figures = {
            "start_wer": to_percent(self.start_rate),
            "wer": to_percent(self.rate),
            "wer_low": to_percent(self.interval.low),
            "wer_high": to_percent(self.interval.high),
            "gain": to_percent(self.gain.gain),
            "gain_low": to_percent(self.gain.lower_bound),
            "p": round(self.gain.p_value, 4),
        }
        return {name: value for name, value in figures.items() if value is not None}

    def caveats(self) -> Iterator[str]:
        """Yield the warning about the interval, if any, and a sentence on how many lists would show the
        gain."""
        if self.warning:
            yield f"warning: {self.warning}"
        yield self.describe_lists_needed()

    def explain(self, force: bool = False) -> str:
        """Say in a sentence what the tuned weights gain, or why the start is kept.

        Args:
            force: whether the tuned weights are written even if they are not better.
        """
        gain, low = 100 * self.gain.gain, 100 * self.gain.lower_bound
        if self.is_better:
            return f"tuned weights gain {gain:.2f} points held out, at least {low:.2f} with 97.5 % confidence"
        kept = "the start is not kept, because of --force" if force else "the start is kept"
        if not self.gain.units_changed or gain == 0:
            return f"{kept}: held out, the tuned weights choose hypotheses with as many errors"
        if gain < 0:
            return f"{kept}: held out, the tuned weights lose {-gain:.2f} points"
        bound = f"the lower bound is {low:.2f}" if np.isfinite(low) else explain_unknown(self.gain, self.unit)
        return f"{kept}: the held-out gain of {gain:.2f} points may be chance, because {bound}"


def judge(
    start_errors: np.ndarray, errors: np.ndarray, reference_words: np.ndarray, groups: Sequence[str]
) -> Judgement:
    """Compare the held-out errors of tuned weights with the errors of the start.

    Args:
        start_errors, errors: (L,).
        reference_words: (L,), or (2, L) if references have alternatives, so that the number of their words
            depends on the hypothesis.
        groups: (L,) speaker or other group of each list, drawn as a whole; see ``choose_units``.
    """
    drawn = bootstrap(np.stack([start_errors, errors]), reference_words, choose_units(groups))
    return Judgement(
        start_rate=float(drawn.rates[0]),
        rate=float(drawn.rates[1]),
        interval=drawn.interval(1),
        gain=drawn.gain(0, 1),
        n_lists=len(errors),
        unit=drawn.unit,
        n_units=drawn.n_units,
        warning=drawn.warning,
    )


STEP = 0.05
"""Distance, in natural units, between neighbouring points that are tried."""
MAX_STEP = 2.0
SIGNIFICANT = 1.96
"""A difference of more than this many standard errors is not noise."""
GRADIENT_STEP = 0.05
"""Step of the finite differences of the gradient, in natural units."""
MIN_SHARE = 0.1
"""A direction lists only weights that move by at least this share of the largest move of a weight."""


@dataclass(frozen=True, slots=True)
class FlatDirection:
    """Range in which one weight, or several together, can change before errors rise by more than the
    noise."""

    ranges: dict[str, tuple[float, float]]
    """Values at both ends of the direction, by name of the weight."""

    @property
    def is_point(self) -> bool:
        """Whether no weight can change."""
        return all(low == high for low, high in self.ranges.values())

    def describe(self) -> str:
        """Describe the ranges, for example ``lm:mixture 9.6 to 12.6 together with word 14.2 to 19.6``."""
        return " together with ".join(
            f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in self.ranges.items()
        )


def find_flat_directions(
    problem: TuningProblem, solution: Solution
) -> tuple[list[FlatDirection], FlatDirection | None]:
    """Find how far each free weight can move alone, and how far all of them can move together.

    They move together in the flattest direction: that in which the expected errors have the least curvature,
    in natural units. The second result is None if fewer than two weights are free.
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
    """Find the direction in which the expected errors have the least curvature: (F,), of length 1."""
    objective = ExpectedErrors(problem, strength=0.0)
    point = objective.moves_to(solution)
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
    """Go from ``weights`` along ``direction``, forwards and backwards, until errors rise by more than the
    noise."""
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
    return FlatDirection({problem.names[k]: (float(ends[0][k]), float(ends[1][k])) for k in named})


EDGE_TOLERANCE = 1e-6
KEPT = "start (kept)"
"""Name of the weights that are written if tuned weights are not better than the start."""


@dataclass(frozen=True, slots=True)
class TunedWeight:
    """One weight before and after tuning."""

    name: str
    start: float
    tuned: float
    fold_mean: float
    fold_spread: float
    """Standard deviation over the folds."""
    note: str = ""
    """A remark such as ``fixed: the scale``, ``at 0`` or ``on an edge``; may be empty."""


@dataclass(frozen=True, slots=True)
class TuningReport:
    """The effect of tuning, and the weights."""

    start: Weights
    tuned: Weights
    """Weights that were fitted on all lists. ``decide`` returns them only if they are better than the
    start."""
    weights: tuple[TunedWeight, ...]
    judgement: Judgement
    standing: Judgement
    """The start compared with the first pass, on the lists as they are."""
    over_first_pass: Gain
    """Gain of tuned weights over the first pass, on held-out lists."""
    method: Method
    """Objective and strength of the tuned weights."""
    fold_methods: tuple[Method, ...]
    flat: tuple[FlatDirection, ...]
    """For each free weight, how far it can move alone before errors rise by more than the noise."""
    flattest: FlatDirection | None
    """Range in which all free weights can move together, in the direction of the least curvature."""
    folds: str
    """A sentence about the division of the lists into folds."""

    def decide(self, force: bool = False) -> Weights:
        """Return the weights to use, with the figures that judge them.

        The tuned weights are used if they are better beyond chance, or with ``force``; otherwise the start.
        """
        figures = self.judgement.figures()
        if self.judgement.is_better or force:
            return replace(self.tuned, held_out=figures)
        return replace(self.start, name=KEPT, held_out={"start_wer": figures["start_wer"]})

    def explain_start(self) -> str:
        """Say in a sentence what the lists show about the start, which is kept, compared with the first pass.

        That the tuned weights are not better does not mean that the start is good.
        """
        gain, first_pass = self.standing.gain, "over the first pass on these lists"
        if gain.interval.is_finite:
            gained = f"gains {format_gain(gain)} points {first_pass} ({describe_p(gain.p_value)})"
        else:
            unknown = explain_unknown(gain, self.standing.unit)
            gained = f"has a gain {first_pass} that cannot be judged, because {unknown}"
        if self.standing.is_better or self.start.tuned_on:
            return f"the start {gained}"
        names = [f"-w lm:{name}=0" for name, weight in self.start.lm.items() if weight]
        instead = f"start from the first pass, `{' '.join(names)}`, or " if names else ""
        return (
            f"nothing shows that the start is good for these models: it was never tuned, and {gained}; "
            f"{instead}choose weights from a grid, `rescorer evaluate … --sweep 0:20`"
        )

    def to_dict(self, force: bool = False) -> dict[str, Any]:
        """Convert to JSON data; rates in percent, intervals and p-value null if unknown.

        Args:
            force: as in ``decide``.
        """
        return {
            "changed": self.judgement.is_better,
            "reason": self.judgement.explain(force),
            "over_first_pass": gain_to_dict(self.over_first_pass),
            "start_over_first_pass": gain_to_dict(self.standing.gain),
            "start_remark": self.explain_start(),
            "start_wer": to_percent(self.judgement.start_rate),
            "held_out_wer": to_percent(self.judgement.rate),
            "held_out_wer_interval": interval_to_list(self.judgement.interval),
            **gain_to_dict(self.judgement.gain),
            "lists": self.judgement.n_lists,
            "lists_needed": self.judgement.n_lists_needed,
            "lists_for_test": self.judgement.n_lists_for_test,
            "lists_needed_sentence": self.judgement.describe_lists_needed(),
            "units": self.judgement.n_units,
            "folds": self.folds,
            "method": str(self.method),
            "fold_methods": dict(Counter(map(str, self.fold_methods))),
            "weights": {weight.pop("name"): weight for weight in map(asdict, self.weights)},
            "flat": [direction.ranges for direction in self.flat],
            "flattest": self.flattest.ranges if self.flattest else None,
        }


def describe_weights(
    parameters: Parameters, tuned: Weights, fold_weights: Sequence[Weights], bounds: np.ndarray
) -> tuple[TunedWeight, ...]:
    """Compare the tuned value of the scale and of each free weight with the values in the folds.

    The λ follow as ``mix:NAME``, those of the caches as ``cache`` and ``neural_cache``, and the θ of the
    neural cache as ``flatness``.

    Args:
        bounds: (K, 2) lowest and highest value that was tried for each weight; further rows are ignored.
    """
    rows = []

    def add(name: str, start: float, value: float, in_folds: np.ndarray, note: str) -> None:
        mean, spread = float(in_folds.mean()), float(in_folds.std())
        rows.append(TunedWeight(name, float(start), float(value), mean, spread, note))

    start, values = parameters.values(parameters.start), parameters.values(tuned)
    in_folds = np.array([parameters.values(weights) for weights in fold_weights])
    for k, name in enumerate(parameters.names):
        if name == parameters.scale:
            add(name, start[k], values[k], in_folds[:, k], "fixed: the scale")
        elif name in parameters.free:
            add(name, start[k], values[k], in_folds[:, k], _note(values[k], start[k], bounds[k]))
    for model in parameters.models if parameters.tunes_mixture else ():
        shares = np.array([weights.mixture[model] for weights in fold_weights])
        share = tuned.mixture[model]
        note = "on an edge" if min(share, 1 - share) < EDGE_TOLERANCE else ""
        add(f"mix:{model}", parameters.start.mixture[model], share, shares, note)
    edges = {CACHE: max(CACHE_SHARES)} if parameters.tunes_cache else {}
    if parameters.tunes_neural_cache:
        edges |= {NEURAL_CACHE: max(NEURAL_CACHES)[0], "flatness": math.inf}
    for name, edge in edges.items():
        shares = np.array([getattr(weights, name) for weights in fold_weights])
        share = getattr(tuned, name)
        note = "at 0" if not share else "on an edge" if share == edge else ""
        add(name, getattr(parameters.start, name), share, shares, note)
    return tuple(rows)


def _note(value: float, start: float, bounds: np.ndarray) -> str:
    if abs(value) <= EDGE_TOLERANCE:
        return "at 0" if abs(start) <= EDGE_TOLERANCE else "on an edge: at 0"
    low, high = bounds
    is_near = np.isclose(value, bounds, rtol=EDGE_TOLERANCE, atol=EDGE_TOLERANCE).any()
    return "on an edge: at its search bound" if low < high and is_near else ""
