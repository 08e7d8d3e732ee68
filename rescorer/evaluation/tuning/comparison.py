"""Compare language models on the same lists: the first pass, each model alone, and the mixture.

Lists are scored once; every row of the comparison applies another set of weights to the same components.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.errors import ConfigError, InvalidList
from rescorer.evaluation.components import collect_components
from rescorer.evaluation.error_rate.alternations import expand_alternations
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.error_rate.oracle import (
    ALL,
    EvaluatedList,
    Selection,
    evaluate_list,
    find_first_pass,
    find_first_pass_totals,
)
from rescorer.evaluation.error_rate.report import Report, build_report
from rescorer.evaluation.perplexity import TextTotals, sum_scores
from rescorer.evaluation.tuning.folds import choose_folds
from rescorer.evaluation.tuning.search import TuningList, TuningSettings, leave_one_group_out, tune
from rescorer.pipeline import Rescorer
from rescorer.score_combination import MIXTURE, WORDS, totals
from rescorer.trie import Words
from rescorer.types import NBestList, Weights


@dataclass(frozen=True)
class ScoredList:
    """The errors and components of a list, both in input order."""

    evaluated: EvaluatedList
    reference: str
    components: Mapping[str, np.ndarray]
    """(H,) float64 by name."""
    words: Sequence[Words]
    """Canonical words of each hypothesis."""
    first_pass_index: int
    """Index of the hypothesis that the recogniser ranked first."""
    first_pass_totals: np.ndarray | None
    """(H,), by which the recogniser ranked; None if only the order is known."""
    selection: Selection
    """Which hypotheses take part in rankings."""


def score_lists(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    weights: Weights | None = None,
    first_pass_weights: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    selection: Selection = ALL,
) -> tuple[list[ScoredList], list[InvalidList]]:
    """Score lists that have references; lists that cannot be scored or evaluated are returned as errors.

    Args:
        weights: their interpolation weights define the mixture.
        first_pass_weights: weights that define the first pass; None for the order of the list.
    """
    normalise = rescorer.bundle.normaliser.normalise
    scored: list[ScoredList] = []
    errors: list[InvalidList] = []
    for nbest, result in zip(lists, rescorer.rescore_each(lists, weights), strict=True):
        if isinstance(result, InvalidList):
            errors.append(result)
            continue
        try:
            evaluated = evaluate_list(nbest, normalise, first_pass_weights, counting)
            words = tuple(normalise(hypothesis.text) for hypothesis in nbest.hypotheses)
            first = find_first_pass(nbest, normalise, first_pass_weights)
            first_totals = find_first_pass_totals(nbest, words, first_pass_weights)
        except InvalidList as error:
            errors.append(error)
            continue
        components, reference = collect_components(result), nbest.reference or ""
        scored.append(ScoredList(evaluated, reference, components, words, first, first_totals, selection))
    return scored, errors


def rerank(scored: ScoredList, weights: Weights) -> EvaluatedList:
    """Order the errors of a list as ``weights`` rank its hypotheses."""
    order, _ = scored.selection.order(scored.words, totals(scored.components, weights))
    return _reorder(scored.evaluated, order)


def rank_by_first_pass(scored: ScoredList) -> EvaluatedList:
    """Move the hypothesis chosen by the first pass to the top of the list."""
    first = scored.first_pass_index
    others = [i for i in range(len(scored.words)) if i != first]
    return _reorder(scored.evaluated, [first, *others])


def select_by_first_pass(scored: ScoredList) -> EvaluatedList:
    """Rank the selected hypotheses by the scores of the first pass, or in its order if these are unknown."""
    scores = scored.first_pass_totals
    unknown = np.zeros(len(scored.words))
    order, _ = scored.selection.order(
        scored.words, unknown if scores is None else scores, keep_order=scores is None
    )
    return _reorder(scored.evaluated, order)


def _reorder(evaluated: EvaluatedList, order: Sequence[int]) -> EvaluatedList:
    return replace(evaluated, hypotheses=tuple(evaluated.hypotheses[i] for i in order))


def name_selected_first_pass(scored: ScoredList) -> str:
    """Name of the row of ``select_by_first_pass``; empty if it would equal the first pass."""
    merges = scored.selection.merge and scored.first_pass_totals is not None
    parts = ["merged"] * merges + ["empty dropped"] * scored.selection.drop_empty
    return ", ".join(["first pass", *parts]) if parts else ""


def weights_by_system(rescorer: Rescorer, weights: Weights) -> dict[str, Weights]:
    """Apply ``weights`` to each model of the bundle alone, and to the mixture if there are several models."""
    scale = weights.lm.get(MIXTURE, 1.0)
    models = list(rescorer.models)
    systems = [*models, MIXTURE] if len(models) > 1 else models
    return {name: replace(weights, name=name, lm={name: scale}) for name in systems}


def score_references(
    rescorer: Rescorer, scored: Sequence[ScoredList], weights: Weights | None = None
) -> TextTotals:
    """Sum the log-probabilities of the references, taking the first reading of each."""
    texts = [" ".join(expand_alternations(item.reference)[0]) for item in scored]
    return sum_scores(rescorer.score_text(texts, weights=weights))


@dataclass(frozen=True)
class TuningProblem:
    """Arrays for tuning two values: the language-model weight, at least 0, and the word insertion penalty.

    All other weights stay as they are.
    """

    lists: list[TuningList]
    start: tuple[float, float, float]
    settings: TuningSettings
    lm: str
    """Name of the language model whose weight is tuned."""

    def apply(self, tuned: Sequence[float], weights: Weights) -> Weights:
        """``weights`` with the tuned numbers."""
        return replace(weights, lm={self.lm: tuned[1]}, word=tuned[2])


def build_tuning_problem(scored: Sequence[ScoredList], weights: Weights) -> TuningProblem:
    """Set up the search around ``weights``; raises ConfigError if they name several language models."""
    if len(weights.lm) != 1:
        raise ConfigError(
            f"tuning adjusts the weight of one language model, but the weights name {sorted(weights.lm)}"
        )
    ((name, scale),) = weights.lm.items()
    fixed = replace(weights, lm={}, word=0.0)
    lists = [_make_tuning_list(item, fixed, name) for item in scored]
    settings = TuningSettings(bounds=((1.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)))
    return TuningProblem(lists, (1.0, scale, weights.word), settings, name)


def _make_tuning_list(scored: ScoredList, fixed: Weights, lm: str) -> TuningList:
    """Reduce a list to the selected hypotheses: merged ones differ only in what has fixed weights."""
    order, fixed_totals = scored.selection.order(scored.words, totals(scored.components, fixed))
    kept = sorted(order)
    parts = (fixed_totals, scored.components[lm], scored.components[WORDS])
    errors = [scored.evaluated.hypotheses[i].errors for i in kept]
    return TuningList(np.stack([part[kept] for part in parts], axis=1), np.array(errors))


def tune_weights(scored: Sequence[ScoredList], weights: Weights) -> Weights:
    """Tune ``weights`` on all lists; their errors on these same lists are optimistic."""
    problem = build_tuning_problem(scored, weights)
    return problem.apply(tune(problem.lists, problem.start, problem.settings).weights, weights)


def cross_validate(scored: Sequence[ScoredList], weights: Weights) -> list[EvaluatedList]:
    """Re-rank each list with weights tuned without the list's fold and without lists that have the same
    reference.

    Raises:
        ConfigError: the weights name several language models, or there are too few lists.
    """
    groups = choose_folds([item.evaluated.id for item in scored], [item.evaluated.group for item in scored])
    problem = build_tuning_problem(scored, weights)
    references = [item.reference for item in scored]
    result = leave_one_group_out(problem.lists, groups, problem.start, problem.settings, sentences=references)
    tuned = {fold.group: problem.apply(fold.weights, weights) for fold in result.folds}
    return [rerank(item, tuned[group]) for item, group in zip(scored, groups, strict=True)]


def compare_systems(
    scored: Sequence[ScoredList], systems: Mapping[str, Weights], with_tuning: bool
) -> dict[str, Report]:
    """Report the first pass, each system and, with tuning, each system with cross-validated weights."""
    rows = {"first pass": build_report(rank_by_first_pass(item) for item in scored)}
    if scored and (name := name_selected_first_pass(scored[0])):
        rows[name] = build_report(select_by_first_pass(item) for item in scored)
    for name, weights in systems.items():
        rows[name] = build_report(rerank(item, weights) for item in scored)
        if with_tuning:
            rows[f"{name}, tuned"] = build_report(cross_validate(scored, weights))
    return rows
