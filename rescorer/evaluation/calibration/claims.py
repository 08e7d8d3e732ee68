"""Make the claims of scored lists: that their best hypotheses are right, and each word of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.calibration.outcomes import (
    Outcomes,
    collect_outcomes,
    judge_utterance,
    judge_words,
)
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings
from rescorer.pipeline import Rescorer
from rescorer.trie import Words
from rescorer.types import NBestList, RescoredList, Weights

Claim = tuple[np.ndarray, np.ndarray]
"""Posteriors at each temperature, (T, K), and correctness, (K,), of K claims about a list."""


@dataclass(frozen=True)
class Claims:
    """The claims about some lists, and what divides the lists into folds."""

    utterances: Outcomes
    words: Outcomes
    lists: tuple[NBestList, ...]
    """The lists of the claims."""

    @property
    def references(self) -> list[str]:
        return [nbest.reference or "" for nbest in self.lists]


def make_claims(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    weights: Weights,
    *,
    merge: bool = False,
    drop_empty: bool = False,
    counting: CountingSettings = DEFAULT_COUNTING,
) -> tuple[Claims | None, list[InvalidList]]:
    """Score lists and judge their best hypotheses under complete weights and their decision rule.

    Args:
        merge, drop_empty: as in ``Rescorer.rescore``; they may change which hypothesis is the best.
        counting: whether references have alternatives.

    Returns:
        The claims, None if there is no valid list; and the error of each list that is not valid.
    """
    normalise = rescorer.ranker.text_normaliser.normalise
    scored = rescorer.rescore_each(lists, weights)
    decided = scored
    if merge or drop_empty:
        decided = rescorer.rescore_each(lists, weights, merge=merge, drop_empty=drop_empty)
    errors: list[InvalidList] = []
    valid: list[NBestList] = []
    utterances: list[Claim] = []
    words: list[Claim] = []
    for nbest, totals, decision in zip(lists, scored, decided, strict=True):
        try:
            utterance, list_words = _judge_list(nbest, totals, decision, normalise, counting)
        except InvalidList as error:
            errors.append(error)
            continue
        valid.append(nbest)
        utterances.append(utterance)
        words.append(list_words)
    if not valid:
        return None, errors
    return Claims(collect_outcomes(utterances), collect_outcomes(words), tuple(valid)), errors


def _judge_list(
    nbest: NBestList,
    scored: RescoredList | InvalidList,
    decided: RescoredList | InvalidList,
    normalise: Callable[[str], Words],
    counting: CountingSettings,
) -> tuple[Claim, Claim]:
    """Judge the best hypothesis of ``decided`` and its words; raises InvalidList if that is not possible."""
    if isinstance(scored, InvalidList):
        raise scored
    if isinstance(decided, InvalidList):
        raise decided
    if nbest.reference is None:
        message = "no reference; give references with --reference FILE"
        raise InvalidList(message, list_id=nbest.id, field="reference")
    readings = [normalise(" ".join(words)) for words in counting.expand(nbest.reference, nbest.id)]
    totals = np.empty(len(nbest.hypotheses))
    for hypothesis in scored.hypotheses:
        totals[hypothesis.original_rank] = hypothesis.total
    words = [normalise(hypothesis.text) for hypothesis in nbest.hypotheses]
    best = decided.best.original_rank
    return judge_utterance(words, totals, best, readings), judge_words(words, totals, best, readings)
