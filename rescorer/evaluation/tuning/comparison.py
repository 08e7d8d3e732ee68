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
from rescorer.evaluation.error_rate.oracle import EvaluatedList, evaluate_list
from rescorer.evaluation.error_rate.report import Report, build_report
from rescorer.evaluation.perplexity import TextTotals, sum_scores
from rescorer.evaluation.tuning.search import TuningList, TuningSettings, leave_one_group_out, tune
from rescorer.pipeline import Rescorer
from rescorer.ranking import best_first
from rescorer.score_combination import MIXTURE, WORDS, totals
from rescorer.types import NBestList, Weights


@dataclass(frozen=True)
class ScoredList:
    """The errors and components of a list, both in input order."""

    evaluated: EvaluatedList
    reference: str
    components: Mapping[str, np.ndarray]
    """(H,) float64 by name."""


def score_lists(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    weights: Weights | None = None,
    first_pass_weights: Mapping[str, float] | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
) -> tuple[list[ScoredList], list[InvalidList]]:
    """Score lists that have references; lists that cannot be scored or evaluated are returned as errors.

    Args:
        weights: their interpolation weights define the mixture.
        first_pass_weights: stream weights that define the first pass; None for the order of the list.
    """
    words = rescorer.bundle.normaliser.normalise
    scored: list[ScoredList] = []
    errors: list[InvalidList] = []
    for nbest, result in zip(lists, rescorer.rescore_each(lists, weights), strict=True):
        if isinstance(result, InvalidList):
            errors.append(result)
            continue
        try:
            evaluated = evaluate_list(nbest, words, first_pass_weights, counting)
        except InvalidList as error:
            errors.append(error)
            continue
        scored.append(ScoredList(evaluated, nbest.reference or "", collect_components(result)))
    return scored, errors


def rerank(scored: ScoredList, weights: Weights) -> EvaluatedList:
    """Order the errors of a list as ``weights`` rank its hypotheses."""
    order = best_first(totals(scored.components, weights)).tolist()
    evaluated = scored.evaluated
    return replace(
        evaluated,
        hypotheses=tuple(evaluated.hypotheses[i] for i in order),
        first_pass_index=order.index(evaluated.first_pass_index),
    )


def rank_by_first_pass(scored: ScoredList) -> EvaluatedList:
    """Move the hypothesis chosen by the first pass to the top of the list."""
    evaluated, first = scored.evaluated, scored.evaluated.first_pass_index
    others = [errors for i, errors in enumerate(evaluated.hypotheses) if i != first]
    return replace(evaluated, hypotheses=(evaluated.hypotheses[first], *others), first_pass_index=0)


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
    lists = [
        TuningList(
            components=np.stack(
                [totals(item.components, fixed), item.components[name], item.components[WORDS]], 1
            ),
            errors=np.array([counts.errors for counts in item.evaluated.hypotheses]),
        )
        for item in scored
    ]
    settings = TuningSettings(bounds=((1.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)))
    return TuningProblem(lists, (1.0, scale, weights.word), settings, name)


def tune_weights(scored: Sequence[ScoredList], weights: Weights) -> Weights:
    """Tune ``weights`` on all lists; their errors on these same lists are optimistic."""
    problem = build_tuning_problem(scored, weights)
    return problem.apply(tune(problem.lists, problem.start, problem.settings).weights, weights)


def cross_validate(scored: Sequence[ScoredList], weights: Weights) -> list[EvaluatedList]:
    """Re-rank each list with weights tuned without the list's group and without lists that have the same
    reference.

    Raises:
        ConfigError: the weights name several language models, or there are fewer than two groups.
    """
    groups = [item.evaluated.group for item in scored]
    if len(set(groups)) < 2:
        raise ConfigError(
            "tuning holds out one group at a time and needs at least two; give the groups of the lists with "
            "--groups or --map"
        )
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
    for name, weights in systems.items():
        rows[name] = build_report(rerank(item, weights) for item in scored)
        if with_tuning:
            rows[f"{name}, tuned"] = build_report(cross_validate(scored, weights))
    return rows
