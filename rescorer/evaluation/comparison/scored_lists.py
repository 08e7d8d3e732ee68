"""Score lists once with all models, so that every row of a comparison only applies other weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import InvalidList
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
from rescorer.evaluation.perplexity import TextTotals, sum_scores
from rescorer.pipeline import Rescorer
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


def score_references(
    rescorer: Rescorer, scored: Sequence[ScoredList], weights: Weights | None = None
) -> TextTotals:
    """Sum the log-probabilities of the references, taking the first reading of each."""
    texts = [" ".join(expand_alternations(item.reference)[0]) for item in scored]
    return sum_scores(rescorer.score_text(texts, weights=weights))
