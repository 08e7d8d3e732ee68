"""Tune the language-model weight and the word insertion penalty on scored lists, also held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.errors import ConfigError
from rescorer.evaluation.comparison.rankings import rerank
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.error_rate.oracle import EvaluatedList
from rescorer.evaluation.tuning.folds import choose_folds
from rescorer.evaluation.tuning.search import TuningList, TuningSettings, leave_one_group_out, tune
from rescorer.score_combination import WORDS, totals
from rescorer.types import Weights


@dataclass(frozen=True)
class TuningProblem:
    """Arrays for tuning the word insertion penalty and, if there is one, a language-model weight.

    The language-model weight is at least 0. All other weights stay as they are.
    """

    lists: list[TuningList]
    start: tuple[float, ...]
    """Weights of the fixed part of the total, of the language model if there is one, and of a word."""
    settings: TuningSettings
    lm: str | None
    """Name of the language model whose weight is tuned; None for the word insertion penalty alone."""

    def apply(self, tuned: Sequence[float], weights: Weights) -> Weights:
        """``weights`` with the tuned numbers."""
        lm = {} if self.lm is None else {self.lm: tuned[1]}
        return replace(weights, lm=lm, word=tuned[-1])


def build_tuning_problem(scored: Sequence[ScoredList], weights: Weights) -> TuningProblem:
    """Set up the search around ``weights``; raises ConfigError if they name several language models."""
    if len(weights.lm) > 1:
        raise ConfigError(
            f"tuning adjusts the weight of one language model, but the weights name {sorted(weights.lm)}"
        )
    name = next(iter(weights.lm), None)
    fixed = replace(weights, lm={}, word=0.0)
    lists = [_make_tuning_list(item, fixed, name) for item in scored]
    any_number, not_negative = (-math.inf, math.inf), (0.0, math.inf)
    bounds = ((1.0, 1.0), *[not_negative] * len(weights.lm), any_number)
    start = (1.0, *weights.lm.values(), weights.word)
    return TuningProblem(lists, start, TuningSettings(bounds=bounds), name)


def _make_tuning_list(scored: ScoredList, fixed: Weights, lm: str | None) -> TuningList:
    """Reduce a list to the selected hypotheses: merged ones differ only in what has fixed weights."""
    order, fixed_totals = scored.selection.order(scored.words, totals(scored.components, fixed))
    kept = sorted(order)
    varying = [WORDS] if lm is None else [lm, WORDS]
    parts = (fixed_totals, *(scored.components[name] for name in varying))
    errors = [scored.evaluated.hypotheses[i].errors for i in kept]
    return TuningList(np.stack([part[kept] for part in parts], axis=1), np.array(errors))


def tune_weights(scored: Sequence[ScoredList], weights: Weights) -> Weights:
    """Tune ``weights`` on all lists; their errors on these same lists are optimistic."""
    problem = build_tuning_problem(scored, weights)
    return problem.apply(tune(problem.lists, problem.start, problem.settings).weights, weights)


def choose_held_out_weights(scored: Sequence[ScoredList], weights: Weights) -> list[Weights]:
    """Tune ``weights`` for each list without the list's fold and without lists that have the same reference.

    Raises:
        ConfigError: the weights name several language models, or there are too few lists.
    """
    groups = choose_folds([item.evaluated.id for item in scored], [item.evaluated.group for item in scored])
    problem = build_tuning_problem(scored, weights)
    references = [item.reference for item in scored]
    result = leave_one_group_out(problem.lists, groups, problem.start, problem.settings, sentences=references)
    tuned = {fold.group: problem.apply(fold.weights, weights) for fold in result.folds}
    return [tuned[group] for group in groups]


def cross_validate(scored: Sequence[ScoredList], weights: Weights) -> list[EvaluatedList]:
    """Re-rank each list with the weights of ``choose_held_out_weights``."""
    held_out = choose_held_out_weights(scored, weights)
    return [rerank(item, list_weights) for item, list_weights in zip(scored, held_out, strict=True)]
