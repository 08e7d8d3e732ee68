"""Owns the comparison of language models on the same lists: first pass, each model alone, the mixture.

Lists are scored once; every row of the comparison is another set of weights over the same components.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.errors import ConfigError, InvalidList
from rescorer.evaluation.error_rate.alternations import expand_alternations
from rescorer.evaluation.error_rate.counting import PLAIN, Counting
from rescorer.evaluation.error_rate.oracle import EvaluatedList, evaluate_list
from rescorer.evaluation.error_rate.report import Report, evaluate
from rescorer.evaluation.perplexity import TextTotals, total
from rescorer.evaluation.tuning.search import TuningList, TuningSettings, leave_one_group_out, tune
from rescorer.pipeline import Rescorer
from rescorer.ranking import best_first
from rescorer.score_combination import MIXTURE, WORDS, totals
from rescorer.types import NBestList, RescoredList, Weights


@dataclass(frozen=True)
class ScoredList:
    """A list with its errors and its components, both in the list's own order."""

    evaluated: EvaluatedList
    reference: str
    components: Mapping[str, np.ndarray]
    """(H,) float64 by name."""


def score_lists(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    weights: Weights | None = None,
    first_pass_weights: Mapping[str, float] | None = None,
    counting: Counting = PLAIN,
) -> tuple[list[ScoredList], list[InvalidList]]:
    """Scores lists that have references; those that cannot be scored, or have none, are told apart.

    Args:
        weights: λ of the mixture are taken from them.
        first_pass_weights: stream weights that make the first pass; None takes the order of the list.
    """
    words = rescorer.bundle.normaliser.words
    out: list[ScoredList] = []
    faults: list[InvalidList] = []
    for nbest, answer in zip(lists, rescorer.rescore_each(lists, weights), strict=True):
        if isinstance(answer, InvalidList):
            faults.append(answer)
            continue
        try:
            evaluated = evaluate_list(nbest, words, first_pass_weights, counting)
        except InvalidList as fault:
            faults.append(fault)
            continue
        out.append(ScoredList(evaluated, nbest.reference or "", components_of(answer)))
    return out, faults


def components_of(answer: RescoredList) -> dict[str, np.ndarray]:
    """The components of a list that was not merged, each (H,) in the order it came in."""
    in_order = sorted(answer.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
    return {name: np.array([h.components[name] for h in in_order]) for name in in_order[0].components}


def reranked(scored: ScoredList, weights: Weights) -> EvaluatedList:
    """The list's errors in the order that some weights give it."""
    order = best_first(totals(scored.components, weights)).tolist()
    evaluated = scored.evaluated
    return replace(
        evaluated,
        hypotheses=tuple(evaluated.hypotheses[i] for i in order),
        first_pass_index=order.index(evaluated.first_pass_index),
    )


def first_pass(scored: ScoredList) -> EvaluatedList:
    """The list with its first-pass choice on top."""
    evaluated, first = scored.evaluated, scored.evaluated.first_pass_index
    others = [h for i, h in enumerate(evaluated.hypotheses) if i != first]
    return replace(evaluated, hypotheses=(evaluated.hypotheses[first], *others), first_pass_index=0)


def system_weights(rescorer: Rescorer, weights: Weights) -> dict[str, Weights]:
    """The same weights for each model of the bundle alone and for their mixture."""
    scale = weights.lm.get(MIXTURE, 1.0)
    names = [*rescorer.models, MIXTURE] if len(rescorer.models) > 1 else list(rescorer.models)
    return {name: replace(weights, name=name, lm={name: scale}) for name in names}


def reference_perplexities(
    rescorer: Rescorer, scored: Sequence[ScoredList], weights: Weights | None = None
) -> TextTotals:
    """What the models give to what was said; a reference that leaves a choice counts in its first reading."""
    spoken = [" ".join(expand_alternations(each.reference)[0]) for each in scored]
    return total(rescorer.score_text(spoken, weights=weights))


@dataclass(frozen=True)
class TuningProblem:
    """What tuning sees: two numbers may move, the weight of the language model (never below 0) and that of
    a word; all else stays as it is."""

    lists: list[TuningList]
    start: tuple[float, float, float]
    settings: TuningSettings
    lm: str

    def weights(self, found: Sequence[float], weights: Weights) -> Weights:
        """``weights`` with what tuning found."""
        return replace(weights, lm={self.lm: found[1]}, word=found[2])


def tuning_problem(scored: Sequence[ScoredList], weights: Weights) -> TuningProblem:
    """Raises ConfigError where the weights name several language models."""
    if len(weights.lm) != 1:
        raise ConfigError(f"tuning moves one language model's weight, not those of {sorted(weights.lm)}")
    ((name, scale),) = weights.lm.items()
    fixed = replace(weights, lm={}, word=0.0)
    lists = [
        TuningList(
            components=np.stack(
                [totals(each.components, fixed), each.components[name], each.components[WORDS]], 1
            ),
            errors=np.array([counts.errors for counts in each.evaluated.hypotheses]),
        )
        for each in scored
    ]
    settings = TuningSettings(bounds=((1.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)))
    return TuningProblem(lists, (1.0, scale, weights.word), settings, name)


def tuned(scored: Sequence[ScoredList], weights: Weights) -> Weights:
    """Weights tuned on all the lists; what they do to these very lists is optimistic."""
    problem = tuning_problem(scored, weights)
    return problem.weights(tune(problem.lists, problem.start, problem.settings).weights, weights)


def cross_validated(scored: Sequence[ScoredList], weights: Weights) -> list[EvaluatedList]:
    """The lists in the order of weights tuned without the list's own group, or any list of the same words.

    Raises:
        ConfigError: the weights name several language models, or there are fewer than two groups.
    """
    groups = [each.evaluated.group for each in scored]
    if len(set(groups)) < 2:
        raise ConfigError(
            "tuning leaves a group out at a time; give the lists' groups with --groups or --map"
        )
    problem = tuning_problem(scored, weights)
    references = [each.reference for each in scored]
    found = leave_one_group_out(problem.lists, groups, problem.start, problem.settings, sentences=references)
    of_group = {fold.group: problem.weights(fold.weights, weights) for fold in found.folds}
    return [reranked(each, of_group[group]) for each, group in zip(scored, groups, strict=True)]


def comparison(
    scored: Sequence[ScoredList], systems: Mapping[str, Weights], with_tuning: bool
) -> dict[str, Report]:
    """A row for the first pass and for each system, and one more each with cross-validated weights."""
    rows = {"first pass": evaluate(first_pass(each) for each in scored)}
    for name, weights in systems.items():
        rows[name] = evaluate(reranked(each, weights) for each in scored)
        if with_tuning:
            rows[f"{name}, tuned"] = evaluate(cross_validated(scored, weights))
    return rows
