"""Tune weights on scored lists, and judge them on lists that took no part in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rescorer.evaluation.comparison.false_alarms import PhraseBound
from rescorer.evaluation.comparison.rankings import rerank
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.tuning.flatness import find_flat_directions
from rescorer.evaluation.tuning.folds import Folds, make_folds
from rescorer.evaluation.tuning.judgement import judge
from rescorer.evaluation.tuning.mixture_choices import MixtureChoice
from rescorer.evaluation.tuning.nested import CrossValidation, cross_validate_problem, fit_all
from rescorer.evaluation.tuning.parameters import (
    DEFAULT_FREE,
    OCCASIONAL,
    Parameters,
    TuningList,
    build_problem,
)
from rescorer.evaluation.tuning.report import TuningReport, describe_weights
from rescorer.evaluation.tuning.temperature import TEMPERATURES, BayesRiskErrors
from rescorer.evaluation.weight_search.fitting import Method, Solution
from rescorer.evaluation.weight_search.problem import TuningProblem
from rescorer.score_combination import CACHE, COUNTED, MIXTURE, NEURAL_CACHE, RERANKER, totals
from rescorer.types import Weights

WeightedList = tuple[ScoredList, Weights]
"""A list, and the weights that rank it; its mixture has their λ."""


@dataclass(frozen=True, slots=True)
class MixtureScores:
    """The mixture's log-probabilities of all hypotheses under several choices of λ."""

    choices: tuple[MixtureChoice, ...]
    """Choices of λ; those of the start come first."""
    log_probs: Sequence[np.ndarray]
    """(G, N) of each list, for all its hypotheses."""
    models: tuple[str, ...] = ()
    """Model of each share."""

    @property
    def has_caches(self) -> bool:
        """Whether choices differ in the λ of the cache."""
        return len({choice.cache for choice in self.choices}) > 1

    @property
    def has_neural_caches(self) -> bool:
        """Whether choices differ in the λ of the neural cache."""
        return len({choice.neural_cache for choice in self.choices}) > 1

    def apply(self, scored: Sequence[ScoredList], choice: int) -> list[ScoredList]:
        """Replace the mixture's scores of the lists by those under one choice of λ."""
        return [
            replace(item, components={**item.components, MIXTURE: log_probs[choice]})
            for item, log_probs in zip(scored, self.log_probs, strict=True)
        ]


class Tuning:
    """A search for weights on scored lists, with cross-validation.

    Args:
        weights: complete weights to start from.
        free: names of the weights that may change; see ``Parameters.choose``.
        mixture: scores under other λ; None if the λ are fixed.
        phrase_bound: bounds the weight of phrases; None for no bound.

    Raises:
        ConfigError: a name is unknown, or there are too few lists.
    """

    def __init__(
        self,
        scored: Sequence[ScoredList],
        weights: Weights,
        free: Sequence[str] = DEFAULT_FREE,
        mixture: MixtureScores | None = None,
        phrase_bound: PhraseBound | None = None,
    ) -> None:
        self.scored, self.start, self._mixture = scored, weights, mixture
        self.phrase_bound = phrase_bound
        streams = find_streams(scored[0].components, weights) if "all" in free else ()
        occasional = {name for item in scored for name in OCCASIONAL if name in item.components}
        occasional |= {CACHE} if mixture and mixture.has_caches else set()
        occasional |= {NEURAL_CACHE} if mixture and mixture.has_neural_caches else set()
        self.parameters = Parameters.choose(weights, free, streams, occasional)
        self.folds: Folds = make_folds(
            [item.evaluated.id for item in scored],
            [item.evaluated.group for item in scored],
            [item.reference for item in scored],
        )
        lists, kept = zip(*(make_tuning_list(item, weights) for item in scored), strict=True)
        self._kept: tuple[np.ndarray, ...] = kept
        self.mixtures = mixture.choices if mixture else ()
        log_probs = None
        if mixture:
            parts = (scores[:, rows] for scores, rows in zip(mixture.log_probs, kept, strict=True))
            log_probs = np.concatenate(list(parts), axis=1)
        self.problem: TuningProblem = build_problem(lists, self.parameters, self.mixtures, log_probs)

    @cached_property
    def cross_validation(self) -> CrossValidation:
        """Weights of each fold, fitted without it."""
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
        """The method, and what it finds on all lists."""
        return fit_all(self.problem, self.folds)

    @cached_property
    def tuned(self) -> list[WeightedList]:
        """All lists under the weights that they all tuned: their errors are optimistic."""
        solution = self.fitted[1]
        weights = self._apply(solution, np.arange(len(self.scored)))
        return [(item, weights) for item in self._mix(solution)]

    def hold_out(self) -> list[WeightedList]:
        """Each list under the weights that were fitted without its fold."""
        by_list: dict[int, WeightedList] = {}
        for fold, weights in zip(self.cross_validation.folds, self.fold_weights, strict=True):
            mixed = self._mix(fold.solution)
            by_list |= {index: (mixed[index], weights) for index in fold.lists.tolist()}
        return [by_list[index] for index in range(len(self.scored))]

    def count_false_alarms(self) -> int:
        """Number of lists that phrases which were not said make worse, under the weights that were fitted
        without their fold; 0 without a bound."""
        if self.phrase_bound is None:
            return 0
        folds = zip(self.cross_validation.folds, self.fold_weights, strict=True)
        return sum(
            self.phrase_bound.alarms.count(self._mix(fold.solution), weights, fold.lists.tolist())
            for fold, weights in folds
        )

    def report(self) -> TuningReport:
        """Fit weights on all lists, and judge the fitting on held-out ones."""
        method, solution = self.fitted
        tuned = self.tuned[0][1]
        before = [rerank(item, self.start).system for item in self.scored]
        after = [rerank(*pair).system for pair in self.hold_out()]
        errors = np.array([[counts.errors for counts in system] for system in (before, after)])
        words = np.array([[counts.reference_words for counts in system] for system in (before, after)])
        flat, flattest = find_flat_directions(self.problem, solution)
        return TuningReport(
            start=self.start,
            tuned=tuned,
            weights=describe_weights(self.parameters, tuned, self.fold_weights, self.problem.bounds),
            judgement=judge(errors[0], errors[1], words, [item.evaluated.group for item in self.scored]),
            method=method,
            fold_methods=tuple(fold.method for fold in self.cross_validation.folds),
            flat=tuple(flat),
            flattest=flattest,
            folds=self.folds.describe(),
        )

    def _mix(self, solution: Solution) -> Sequence[ScoredList]:
        """All lists with the mixture's scores under the λ of a solution."""
        return self._mixture.apply(self.scored, solution.mixture) if self._mixture else self.scored

    def _apply(self, solution: Solution, lists: np.ndarray) -> Weights:
        """The weights of a solution; phrases are bounded, and a temperature is chosen, on the lists that
        tuned it."""
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
    """Names of the components that are streams of a list."""
    others = {*weights.lm, *weights.mixture, *weights.components, MIXTURE, *COUNTED}
    return [name for name in components if name not in others and not name.startswith(RERANKER)]


def make_tuning_list(scored: ScoredList, weights: Weights) -> tuple[TuningList, np.ndarray]:
    """Reduce a list to the selected hypotheses; also return their positions.

    Merging adds to the total of the best of equal hypotheses what it adds under ``weights``: an approximation
    where the weights of streams change. Models and counts are the same for equal hypotheses.
    """
    own = totals(scored.components, weights)
    order, merged = scored.selection.order(scored.words, own)
    kept = np.array(sorted(order))
    components = {name: values[kept] for name, values in scored.components.items()}
    errors = np.array([scored.evaluated.hypotheses[i].errors for i in kept])
    return TuningList(components, errors, (merged - own)[kept] if scored.selection.merge else None), kept
