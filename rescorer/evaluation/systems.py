"""Compare systems on the same lists: first pass, rules, each model, the mixture, tuned weights, oracle.

The input is scored lists and weights; the output is one row per system, with its errors. Some rows need no
language model: they show what simple rules gain, so that models do not get the credit for it. Such a rule,
for example to leave out empty hypotheses, can gain as much as rescoring.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from rescorer.errors import ConfigError, LimitExceeded, did_you_mean, pluralise, quote
from rescorer.evaluation.false_alarms import PhraseBound, find_false_alarms, has_phrases
from rescorer.evaluation.folds import (
    DEFAULT_FREE,
    OCCASIONAL,
    Folds,
    MixtureChoice,
    Parameters,
    TuningList,
    build_problem,
    make_folds,
)
from rescorer.evaluation.list_errors import Report, Selection, build_report, to_percent
from rescorer.evaluation.scored_lists import (
    MeasuredList,
    order_by_errors,
    order_by_expected_errors,
    order_by_file,
    order_by_first_pass,
    order_by_weights,
    order_selection_by_first_pass,
    rank_by_first_pass,
    reorder,
    rerank,
)
from rescorer.evaluation.tuning import (
    TEMPERATURES,
    BayesRiskErrors,
    CrossValidation,
    TuningReport,
    cross_validate_problem,
    describe_weights,
    find_flat_directions,
    fit_all,
    judge,
)
from rescorer.evaluation.weight_search import Method, Solution, TuningProblem
from rescorer.extensions import used_rerankers
from rescorer.notebook import Shown, Table, document_fields
from rescorer.pipeline import Rescorer
from rescorer.reranking.reranker import replace_by_base
from rescorer.types import DecisionRule, Weights
from rescorer.weights import CACHE, COUNTED, MIXTURE, NEURAL_CACHE, RERANKER, WORDS, totals

Kind = Literal["first pass", "baseline", "model", "decision", "file", "oracle"]
"""The kind of system that ranks the hypotheses. In the order of the names: the recogniser, a rule without
language models, a language model, a decision rule on top of a language model, the order of a file, and an
oracle, which knows the references."""


@dataclass(frozen=True, slots=True)
class Row:
    """A system, the hypotheses that it chose, and their errors."""

    name: str
    kind: Kind
    winners: np.ndarray
    """(L,) int64, position of the hypothesis that the system ranks first in each list."""
    report: Report
    held_out: bool = False
    """Whether the weights for each list were tuned without it."""
    n_generated: int = 0
    """Number of lists for which the system chose a generated hypothesis."""

    @property
    def is_baseline(self) -> bool:
        """Whether the row needs no language model. A model must beat all such rows to be worth its cost."""
        return self.kind in ("first pass", "baseline")

    @property
    def is_rescored(self) -> bool:
        """Whether language models ranked the hypotheses, or may have done so before the file was written."""
        return self.kind in ("model", "decision", "file")


def build_row(
    name: str,
    kind: Kind,
    scored: Sequence[MeasuredList],
    orders: Iterable[Sequence[int]],
    *,
    held_out: bool = False,
) -> Row:
    """Build the row of a system from the hypotheses that it ranks first.

    Args:
        orders: for each list, the positions of its hypotheses in the order of the system, best first.
    """
    ranked = list(orders)
    lists = (reorder(item.evaluated, order) for item, order in zip(scored, ranked, strict=True))
    winners = np.array([order[0] for order in ranked], dtype=np.int64)
    chosen = (item.nbest.hypotheses[order[0]] for item, order in zip(scored, ranked, strict=True))
    n_generated = sum(hypothesis.generated is not None for hypothesis in chosen)
    return Row(name, kind, winners, build_report(lists), held_out, n_generated)


def choose_row(rows: Sequence[tuple[str, Row]], system: str | None) -> int:
    """Find the row that an analysis should describe.

    Args:
        rows: rows with the names under which they are shown.
        system: name of a row, with or without the name of its file. None stands for the last row in which
            language models rank (a row with held-out weights, if there are any) or, without such a row, for
            the first row.

    Returns:
        The index of the row; if several rows have the name, the last of them.

    Raises:
        ConfigError: there is no such row.
    """
    if system is None:
        return max((i for i, (_, row) in enumerate(rows) if row.kind in ("model", "file")), default=0)
    found = [i for i, (name, row) in enumerate(rows) if system in (name, row.name)]
    if not found:
        names = [name for name, _ in rows]
        raise ConfigError(
            f"--system {system!r}: the rows are {', '.join(map(repr, names))}{did_you_mean(system, names)}"
        )
    return found[-1]


def count_by_list(row: Row, scored: Sequence[MeasuredList]) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors and the reference words of the winners of a row, (L,) int64 each."""
    counts = [item.evaluated.hypotheses[i] for item, i in zip(scored, row.winners.tolist(), strict=True)]
    errors = np.array([count.errors for count in counts], dtype=np.int64)
    return errors, np.array([count.reference_words for count in counts], dtype=np.int64)


FIRST_PASS, TUNED, HELD_OUT = "first pass", "tuned", "held out"

WeightedList = tuple[MeasuredList, Weights]
"""A list, and the weights that rank it. The component of the mixture in the list has the λ of these
weights."""


@dataclass(frozen=True, slots=True)
class MixtureScores:
    """The mixture's log-probabilities of all hypotheses under several candidates for the λ."""

    choices: tuple[MixtureChoice, ...]
    """The candidates; the start comes first."""
    log_probs: Sequence[np.ndarray]
    """(G, N) for each list: log-probabilities of its N hypotheses under the G candidates."""
    models: tuple[str, ...] = ()
    """The models, in the order of ``MixtureChoice.shares``."""

    def apply(self, scored: Sequence[MeasuredList], choice: int) -> list[MeasuredList]:
        """Return lists whose mixture has its scores under one candidate, given by index."""
        return [
            replace(item, components={**item.components, MIXTURE: log_probs[choice]})
            for item, log_probs in zip(scored, self.log_probs, strict=True)
        ]


class Tuning:
    """A search for weights on scored lists, with cross-validation.

    Args:
        weights: complete weights to start from.
        free: names of the weights that may change; see ``Parameters.choose``.
        mixture: scores of the mixture under all candidates for the λ; None if the λ are fixed.
        phrase_bound: keeps the weight of phrases low enough; None for no bound.

    Raises:
        ConfigError: a name is unknown, or there are too few lists.
    """

    def __init__(
        self,
        scored: Sequence[MeasuredList],
        weights: Weights,
        free: Sequence[str] = DEFAULT_FREE,
        mixture: MixtureScores | None = None,
        phrase_bound: PhraseBound | None = None,
    ) -> None:
        self.scored, self.start, self._mixture = scored, weights, mixture
        self.phrase_bound = phrase_bound
        streams = find_streams(scored[0].components, weights) if "all" in free else ()
        occasional = {name for item in scored for name in OCCASIONAL if name in item.components}
        self.mixtures = mixture.choices if mixture else ()
        for name in (CACHE, NEURAL_CACHE):
            if len({getattr(choice, name) for choice in self.mixtures}) > 1:
                occasional.add(name)
        parameters = Parameters.choose(weights, free, streams, occasional)
        self.parameters = replace(parameters, start=guess_weights(scored, parameters))
        self.folds: Folds = make_folds(
            [item.evaluated.id for item in scored],
            [item.evaluated.group for item in scored],
            [item.reference for item in scored],
        )
        lists, kept = zip(*(make_tuning_list(item, weights) for item in scored), strict=True)
        self._kept: tuple[np.ndarray, ...] = kept
        log_probs = None
        if mixture:
            parts = (scores[:, rows] for scores, rows in zip(mixture.log_probs, kept, strict=True))
            log_probs = np.concatenate(list(parts), axis=1)
        self.problem: TuningProblem = build_problem(lists, self.parameters, self.mixtures, log_probs)

    @cached_property
    def cross_validation(self) -> CrossValidation:
        """Weights for each fold, fitted on the other folds."""
        return cross_validate_problem(self.problem, self.folds)

    @cached_property
    def fold_weights(self) -> list[Weights]:
        """The weights of each fold."""
        return [
            self._apply(fold.solution, self.folds.split(number)[0])
            for number, fold in enumerate(self.cross_validation.folds)
        ]

    @cached_property
    def fitted(self) -> tuple[Method, Solution]:
        """The method of tuning that is chosen on all lists, and the solution that it finds on them."""
        return fit_all(self.problem, self.folds)

    @cached_property
    def tuned(self) -> list[WeightedList]:
        """All lists, with the weights that were tuned on all of them: errors under these are optimistic."""
        solution = self.fitted[1]
        weights = self._apply(solution, np.arange(len(self.scored)))
        return [(item, weights) for item in self._mix(solution)]

    def hold_out(self) -> list[WeightedList]:
        """Return each list with the weights that were fitted without its fold."""
        by_list: dict[int, WeightedList] = {}
        for fold, weights in zip(self.cross_validation.folds, self.fold_weights, strict=True):
            mixed = self._mix(fold.solution)
            by_list |= {index: (mixed[index], weights) for index in fold.lists.tolist()}
        return [by_list[index] for index in range(len(self.scored))]

    def count_false_alarms(self) -> int:
        """Count the lists that are made worse by phrases that were not said; 0 without a bound.

        Each list is ranked by the weights that were fitted without its fold.
        """
        if self.phrase_bound is None:
            return 0
        folds = zip(self.cross_validation.folds, self.fold_weights, strict=True)
        return sum(
            self.phrase_bound.alarms.count(self._mix(fold.solution), weights, fold.lists.tolist())
            for fold, weights in folds
        )

    def report(self) -> TuningReport:
        """Fit weights on all lists, and judge this way of fitting on held-out lists."""
        method, solution = self.fitted
        tuned = self.tuned[0][1]
        first = [rank_by_first_pass(item.recognised).system for item in self.scored]
        before = [rerank(item, self.start).system for item in self.scored]
        after = [rerank(*pair).system for pair in self.hold_out()]
        errors = np.array([[counts.errors for counts in system] for system in (first, before, after)])
        words = np.array([[counts.reference_words for counts in system] for system in (first, before, after)])
        groups = [item.evaluated.group for item in self.scored]
        flat, flattest = find_flat_directions(self.problem, solution)
        return TuningReport(
            start=self.start,
            tuned=tuned,
            weights=describe_weights(
                replace(self.parameters, start=self.start), tuned, self.fold_weights, self.problem.bounds
            ),
            judgement=judge(errors[1], errors[2], words[1:], groups),
            standing=judge(errors[0], errors[1], words[:2], groups),
            over_first_pass=judge(errors[0], errors[2], words[::2], groups).gain,
            method=method,
            fold_methods=tuple(fold.method for fold in self.cross_validation.folds),
            flat=tuple(flat),
            flattest=flattest,
            folds=self.folds.describe(),
        )

    def rows(self) -> dict[str, Report]:
        """Return the errors of the first pass, of the start, and of tuned weights.

        Tuned weights have two entries: errors on held-out lists, and the optimistic ones on the tuning lists.
        """
        recognised = [item.recognised for item in self.scored]
        rows = {FIRST_PASS: build_report(rank_by_first_pass(item) for item in recognised)}
        selection = self.scored[0].selection
        merges = selection.merge and self.scored[0].first_pass_totals is not None
        if selected := ["merged"] * merges + ["empty dropped"] * selection.drop_empty:
            rows[", ".join([FIRST_PASS, *selected])] = build_report(
                reorder(item.evaluated, order_selection_by_first_pass(item)) for item in recognised
            )
        return rows | {
            "before tuning": build_report(rerank(item, self.start) for item in self.scored),
            HELD_OUT: build_report(rerank(*pair) for pair in self.hold_out()),
            "tuned, on its own lists (optimistic)": build_report(rerank(*pair) for pair in self.tuned),
        }

    def _mix(self, solution: Solution) -> Sequence[MeasuredList]:
        """Return all lists with the mixture's scores under the λ of a solution."""
        return self._mixture.apply(self.scored, solution.mixture) if self._mixture else self.scored

    def _apply(self, solution: Solution, lists: np.ndarray) -> Weights:
        """Return the weights of a solution that was tuned on some lists, given by index.

        Two things are chosen afterwards on the same lists: a bound of the weight of phrases and, for minimum
        Bayes risk, the temperature.
        """
        weights = self.parameters.apply(solution, self.mixtures)
        used = set(lists.tolist())
        if self.phrase_bound:
            weights = self.phrase_bound.apply(self._mix(solution), weights, used)
        if weights.decision.kind != "minimum_bayes_risk":
            return weights
        temperatures = tuple(dict.fromkeys([weights.decision.temperature, *TEMPERATURES]))
        errors = sum(
            self._bayes_risk.count(index, totals(item.components, weights)[self._kept[index]], temperatures)
            for index, item in enumerate(self._mix(solution))
            if index in used
        )
        best = temperatures[int(np.argmin(errors))]
        return replace(weights, decision=replace(weights.decision, temperature=best))

    @cached_property
    def _bayes_risk(self) -> BayesRiskErrors:
        words = [[item.words[i] for i in kept] for item, kept in zip(self.scored, self._kept, strict=True)]
        errors = np.split(self.problem.errors, self.problem.offsets[1:-1])
        return BayesRiskErrors(words, errors, self.start.decision.unit)


def find_streams(components: Iterable[str], weights: Weights) -> list[str]:
    """Return the names of those components that are streams of a list."""
    others = {*weights.lm, *weights.mixture, *weights.components, MIXTURE, *COUNTED}
    return [name for name in components if name not in others and not name.startswith(RERANKER)]


def make_tuning_list(scored: MeasuredList, weights: Weights) -> tuple[TuningList, np.ndarray]:
    """Reduce a list to its selected hypotheses, and also return their positions.

    Merging equal hypotheses raises the total of the best one. The rise under ``weights`` becomes a constant
    ``offset``. That is exact if only weights of models and counts change, whose scores of equal hypotheses
    are equal; it is an approximation if weights of streams change.
    """
    own = totals(scored.components, weights)
    order, merged = scored.selection.order(scored.words, own)
    kept = np.array(sorted(order))
    components = {name: values[kept] for name, values in scored.components.items()}
    errors = np.array([scored.evaluated.hypotheses[i].errors for i in kept])
    return TuningList(components, errors, (merged - own)[kept] if scored.selection.merge else None), kept


def score_mixtures(
    rescorer: Rescorer, scored: Sequence[MeasuredList], weights: Weights, free: Sequence[str] = DEFAULT_FREE
) -> MixtureScores | None:
    """Mix the models' scores word by word, under each candidate for the λ.

    The λ of the cache are searched if lists have previous utterances, and the mixture consists of forward
    models. Those of the neural cache also need a network that can have such a cache. The result is None if
    tuning changes no λ.

    Args:
        weights: complete weights that tuning starts from.
        free: names of the weights that may change; see ``Parameters.choose``.

    Raises:
        ConfigError: a name is unknown.
    """
    backward = not set(weights.mixture).isdisjoint(rescorer.bundle.backward)
    has_sessions = not backward and any(item.nbest.previous for item in scored)
    remembers = not rescorer.bundle.remembers.isdisjoint(weights.mixture)
    occasional = [CACHE] * has_sessions + [NEURAL_CACHE] * (has_sessions and remembers)
    parameters = Parameters.choose(weights, free, occasional=occasional)
    if not (parameters.tunes_mixture or parameters.tunes_cache or parameters.tunes_neural_cache):
        return None
    choices = tuple(parameters.choose_mixtures())
    mixtures = [dict(zip(parameters.models, choice.shares, strict=True)) for choice in choices]
    caches = [choice.cache for choice in choices]
    neural = [(choice.neural_cache, choice.flatness) for choice in choices]
    log_probs = rescorer.mixture_log_probs([item.nbest for item in scored], mixtures, caches, neural)
    ends = np.cumsum([len(item.words) for item in scored])[:-1]
    return MixtureScores(choices, np.split(log_probs, ends, axis=1), parameters.models)


GUESSED_SHARE = 0.5
"""Spread of a language model's weighted scores within lists, relative to that of all others, from which
tuning begins if the model has no weight yet."""


def guess_weights(scored: Sequence[MeasuredList], parameters: Parameters) -> Weights:
    """Guess weights from which the search for those of language models begins that have the weight 0.

    Few lists say little, so that tuning stays close to where it begins. A guess is near the weights of useful
    models, and 0 is not.
    """
    start = parameters.start
    for name, weight in start.lm.items():
        is_free = f"lm:{name}" in parameters.free - parameters.either_sign
        if weight or not is_free or name == MIXTURE or name in start.mixture:
            continue
        columns = [np.stack([totals(item.components, start), item.components[name]]) for item in scored]
        spoken = [values[:, item.components[WORDS] > 0] for values, item in zip(columns, scored, strict=True)]
        centred = [values - values.mean(axis=1, keepdims=True) for values in spoken if values.size]
        total, log_probs = np.concatenate(centred, axis=1).std(axis=1) if centred else (0.0, 0.0)
        if total and log_probs:
            start = replace(start, lm={**start.lm, name: GUESSED_SHARE * float(total / log_probs)})
    return start


WORD_ONLY = "word weight only"
EMPTY_OUT = "empty left out"
MERGED = "merged only"
MERGED_EMPTY_OUT = "merged, empty left out"


def build_baselines(
    scored: Sequence[MeasuredList], word_only: Weights | None = None, *, with_tuning: bool = False
) -> tuple[list[Row], list[str]]:
    """Build the rows that need no language model, the first pass first.

    A row that makes the same choices as an earlier one, or needs scores that are missing, is replaced by a
    note.

    Args:
        word_only: result of ``drop_models``; None: there is no row with a word weight.
        with_tuning: add a row in which the word weight alone is tuned by cross-validation.
    """
    first = build_row(FIRST_PASS, "first pass", scored, map(order_by_first_pass, scored))
    can_merge = all(  # merging adds up probabilities, which takes scores
        item.first_pass_totals is not None or len(set(item.words)) == len(item.words) for item in scored
    )
    rows = []
    for name, selection in SELECTIONS.items():
        if can_merge or not selection.merge:
            orders = (order_selection_by_first_pass(item, selection) for item in scored)
            rows.append(build_row(name, "baseline", scored, orders))
    if word_only is not None:
        orders = (order_by_weights(item, word_only) for item in scored)
        rows.append(build_row(WORD_ONLY, "baseline", scored, orders))
        if with_tuning:
            orders = (order_by_weights(*pair) for pair in Tuning(scored, word_only, ("word",)).hold_out())
            rows.append(build_row(f"{WORD_ONLY}, {TUNED}", "baseline", scored, orders, held_out=True))
    kept, notes = _fold_equal([first, *rows])
    if not can_merge:
        notes.append(f"no row {MERGED!r}: it needs the scores that the recogniser ranked by (--first-pass)")
    return kept, notes


def _fold_equal(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that differ from all earlier ones, and notes about the others."""
    kept: list[Row] = []
    same: dict[str, list[str]] = {}
    for row in rows:
        equal = [other.name for other in kept if np.array_equal(row.winners, other.winners)]
        if equal:
            same.setdefault(equal[0], []).append(row.name)
        else:
            kept.append(row)
    notes = [f"the same choices as {name!r}: {', '.join(map(repr, others))}" for name, others in same.items()]
    return kept, notes


SELECTIONS = {
    EMPTY_OUT: Selection(drop_empty=True),
    MERGED: Selection(merge=True),
    MERGED_EMPTY_OUT: Selection(merge=True, drop_empty=True),
}
"""The hypotheses that take part in rankings, by name of the row."""


def drop_models(weights: Weights, first_pass: Weights | None = None) -> Weights | None:
    """Return weights without language models and rerankers, to see what the word weight gains alone.

    Args:
        first_pass: weights that define the first pass. If given, their streams replace those of ``weights``.

    Returns:
        None if no stream has a weight, so that only the lengths would decide.
    """
    streams = (first_pass or weights).streams
    if not any(streams.values()):
        return None
    return replace(weights, name=WORD_ONLY, streams=streams, lm={}, oov=0.0, rerankers={})


COUNTS = ("errors", "substitutions", "deletions", "insertions")
"""Counts of errors that the table of a comparison has."""
ORACLE = "oracle"
ORACLE_GENERATED = "oracle with generated"
"""Name of the row of an oracle that may also choose generated hypotheses, as rows of models may."""
RISK = "MBR"
"""Suffix of the names of rows that decide by minimum Bayes risk: the fewest expected errors win."""


@document_fields
@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Rows about the same lists."""

    scored: Sequence[MeasuredList]
    """The lists, in the order of ``Row.winners``."""
    first_pass: Row
    """The row over which gains are measured. It may be missing in ``rows``."""
    rows: list[Row]
    """One row per system, in the order in which tables show them; an oracle comes last."""
    notes: list[str] = field(default_factory=list)
    """Remarks about rows that are missing."""
    held_out: Mapping[str, Sequence[Weights]] = field(default_factory=dict)
    """For each system, the weights of each list, which were tuned without the fold of the list."""
    mixtures: Mapping[str, MixtureScores] = field(default_factory=dict)
    """For each system, the mixture's scores under the candidates for the λ that tuning chose from."""
    tunings: Mapping[str, Tuning] = field(default_factory=dict)
    """For each system, the search that gave the weights of ``held_out``."""

    def _summary(self) -> str:
        systems = [row for row in self.rows if row.kind != "oracle"]
        best = min(systems, key=lambda row: row.report.total.system.errors)
        rate, start = (to_percent(row.report.total.system.rate) for row in (best, self.first_pass))
        compared = f"{pluralise(len(self.rows), 'system')} on {pluralise(len(self.scored), 'list')}"
        return f"{compared}, best {quote(best.name)} with {rate} %, first pass {start} %"

    def _table(self) -> Table:
        counts = [row.report.total.system for row in self.rows]
        errors = {name: [getattr(count, name) for count in counts] for name in COUNTS}
        rates = {"error rate, %": [to_percent(count.rate) for count in counts]}
        names = {name: [getattr(row, name) for row in self.rows] for name in ("name", "kind", "held_out")}
        return Table(repr(self), {**names, **rates, **errors})


def weights_by_system(rescorer: Rescorer, weights: Weights, with_tuning: bool = False) -> dict[str, Weights]:
    """Make the weights of the systems that are compared: each model of the bundle alone, and the mixture.

    Each system gives its model the same weight: the sum of those of the mixture and of all backward models,
    or of all models if there is no mixture. The system of the mixture comes last. If the mixture has only one
    model, the system of this model takes its place.

    There is one more system, with ``weights`` as they are, if these weigh several language models (one may be
    subtracted), or rerankers. With rerankers, the other systems use their base weights.

    Models in pieces of words are not mixed: alone they have the weight that they have in ``weights``.

    Args:
        with_tuning: whether weights may change, so that models with λ 0 also belong to the mixture, and
            models in pieces of words with the weight 0 are weighed too.
    """
    weights = rescorer.ranker.effective_weights(weights)
    rerankers = used_rerankers(rescorer.bundle, weights)
    plain = replace_by_base(weights, rerankers)
    mixed = [name for name, share in plain.mixture.items() if share or with_tuning]
    names = [*rescorer.models]
    if mixed:
        scale = plain.lm.get(MIXTURE, 1.0) + sum(plain.lm.get(name, 0.0) for name in rescorer.bundle.backward)
        last = MIXTURE if len(mixed) > 1 else mixed[0]
        names = [*(name for name in names if name != last), last]
    else:
        scale = sum(plain.lm.values()) or 1.0
    apart = rescorer.bundle.open_vocabulary
    scales = {name: plain.lm.get(name, scale) if name in apart else scale for name in names}
    systems = {name: replace(plain, name=name, lm={name: scales[name]}) for name in names}
    weighted = [name for name, weight in weights.lm.items() if weight or (with_tuning and name in apart)]
    if rerankers:
        weighted = [reranker.component for reranker in rerankers]
    if rerankers or len(weighted) > 1:
        name = " + ".join(weighted)
        systems[name] = replace(weights, name=name)
    return systems


def awaits_weight(rescorer: Rescorer, weights: Weights) -> bool:
    """Whether weights name a model in pieces of words, but do not give it a weight before tuning."""
    return any(not weights.lm.get(name, 1.0) for name in rescorer.bundle.open_vocabulary)


def compare_systems(
    scored: Sequence[MeasuredList],
    systems: Mapping[str, Weights],
    with_tuning: bool,
    word_only: Weights | None = None,
    rescorer: Rescorer | None = None,
) -> Comparison:
    """Make the rows of the first pass, the baselines, each system, and the oracle.

    Args:
        systems: weights of each system, by its name.
        with_tuning: add rows with weights tuned by cross-validation, for each system and for the word weight
            alone.
        word_only: as in ``build_baselines``.
        rescorer: mixes the models' scores, so that the λ of the mixture can be tuned; None keeps the λ.
    """
    recognised = [item.recognised for item in scored]
    rows, notes = build_baselines(recognised, word_only, with_tuning=with_tuning)
    held_out: dict[str, Sequence[Weights]] = {}
    mixtures: dict[str, MixtureScores] = {}
    tunings: dict[str, Tuning] = {}
    bound, decided = None, False
    if with_tuning and rescorer and systems and has_phrases(rescorer, scored):
        bound = PhraseBound(find_false_alarms(rescorer, scored, next(iter(systems.values()))))
    for name, weights in systems.items():
        used = [model for model, share in weights.mixture.items() if share]
        if name == MIXTURE and len(used) == 1:
            notes.append(f"the same choices as {used[0]!r}: 'mixture', whose other λ are 0 before tuning")
        lists: Sequence[WeightedList] = [(item, weights) for item in scored]
        if is_weighted := rescorer is None or not awaits_weight(rescorer, weights):
            rows.append(_build_model_row(name, lists))
        decided = is_weighted or with_tuning
        if with_tuning:
            start = weights
            if weights.decision.kind != "minimum_bayes_risk":  # so that the temperature is also tuned
                start = replace(weights, decision=DecisionRule("minimum_bayes_risk"))
            mixture = score_mixtures(rescorer, scored, start) if rescorer else None
            start = bound.apply(scored, start) if bound else start
            tunings[name] = Tuning(scored, start, mixture=mixture, phrase_bound=bound)
            lists = tunings[name].hold_out()
            held_out[name] = [list_weights for _, list_weights in lists]
            if mixture:
                mixtures[name] = mixture
            rows.append(_build_model_row(f"{name}, {TUNED}", lists, held_out=True))
    if decided:
        try:
            last, orders = rows[-1], (order_by_expected_errors(*pair) for pair in lists)
            ranked = [item for item, _ in lists]
            name = f"{last.name}, {RISK}"
            rows.append(build_row(name, "decision", ranked, orders, held_out=last.held_out))
        except LimitExceeded as error:
            notes.append(f"no row {RISK!r}: {error}")
    rows.append(build_oracle(recognised))
    if n_lists := sum(item.has_generated for item in scored):
        rows.append(build_oracle(scored, ORACLE_GENERATED))
        count = sum(len(item.words) - item.n_recognised for item in scored)
        notes.append(
            f"hypotheses that were generated, {count:,} for {n_lists:,} of {len(scored):,} lists, take part "
            f"in rows of models and in {ORACLE_GENERATED!r}, but not in other rows, nor in the oracle by "
            "depth"
        )
    return Comparison(scored, rows[0], rows, notes, held_out, mixtures, tunings)


def name_possible_rows(
    systems: Collection[str], with_tuning: bool, with_generated: bool = False
) -> list[str]:
    """Name all rows that ``compare_systems`` may make, or ``compare_rules`` if there are no systems.

    A comparison may have fewer rows, because rows that make the same choices are joined.
    """
    models = [WORD_ONLY, *systems] if systems else []
    risk = [f"{name}, {RISK}" for name in systems]
    if with_tuning:
        models += [f"{name}, {TUNED}" for name in models]
        risk = [f"{name}, {TUNED}, {RISK}" for name in systems]
    return [FIRST_PASS, *SELECTIONS, *models, *risk[-1:], ORACLE, *[ORACLE_GENERATED] * with_generated]


def _build_model_row(name: str, lists: Sequence[WeightedList], *, held_out: bool = False) -> Row:
    """Build the row of a model, where each list has its own weights."""
    orders = (order_by_weights(*pair) for pair in lists)
    return build_row(name, "model", [item for item, _ in lists], orders, held_out=held_out)


def compare_file(scored: Sequence[MeasuredList], name: str) -> Comparison:
    """Make the row of a file, in which the first hypothesis of each list wins."""
    first = build_row(FIRST_PASS, "first pass", scored, map(order_by_first_pass, scored))
    return Comparison(scored, first, [build_row(name, "file", scored, map(order_by_file, scored))])


def compare_rules(scored: Sequence[MeasuredList], name: str) -> Comparison:
    """Make the row of a file, the baselines that differ from it, and the oracle.

    If the order of the file is that of the first pass, one row stands for both. If every list has one
    hypothesis, there is only one row, because there is nothing to choose.
    """
    if max(len(item.words) for item in scored) == 1:
        return compare_file(scored, name)
    (first, *baselines), notes = build_baselines(scored)
    row = build_row(name, "file", scored, map(order_by_file, scored))
    if np.array_equal(row.winners, first.winners):
        row = first = replace(row, kind="first pass")
    else:
        baselines = [first, *baselines]
    return Comparison(scored, first, [row, *baselines, build_oracle(scored)], notes)


def build_oracle(scored: Sequence[MeasuredList], name: str = ORACLE) -> Row:
    """Build the row of the oracle, which chooses the hypothesis with the fewest errors in each list."""
    return build_row(name, "oracle", scored, map(order_by_errors, scored))
