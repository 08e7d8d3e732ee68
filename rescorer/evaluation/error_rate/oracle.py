"""Owns what a list could give at best and at worst: the errors of each of its hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate.counting import PLAIN, Counting
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.ranking import best_first
from rescorer.types import NBestList


@dataclass(frozen=True, slots=True)
class EvaluatedList:
    """The errors of every hypothesis of one list, in the list's order."""

    id: str
    group: str
    hypotheses: tuple[WordErrors, ...]
    first_pass_index: int = 0
    """Which of them the recogniser itself put first."""
    unit: str = "word"
    """What was counted: ``word`` or ``character``."""

    @property
    def system(self) -> WordErrors:
        """Of the hypothesis that the list has first."""
        return self.hypotheses[0]

    @property
    def first_pass(self) -> WordErrors:
        return self.hypotheses[self.first_pass_index]

    @property
    def oracle(self) -> WordErrors:
        """Of the hypothesis with the fewest errors."""
        return min(self.hypotheses, key=lambda counts: counts.errors)

    @property
    def worst(self) -> WordErrors:
        """Of the hypothesis with the most errors."""
        return max(self.hypotheses, key=lambda counts: counts.errors)


def evaluate_list(
    nbest: NBestList,
    words: Callable[[str], tuple[str, ...]],
    first_pass_weights: Mapping[str, float] | None = None,
    counting: Counting = PLAIN,
) -> EvaluatedList:
    """Counts the errors of every hypothesis against the list's reference.

    A reference with alternations counts, for each hypothesis, as the reading that fits it best.

    Args:
        words: text to canonical words, the same for reference and hypotheses: ``Normaliser.words``.
        first_pass_weights: stream weights that make the first pass; None takes the recogniser's order.

    Raises:
        InvalidList: no reference, malformed alternations or ranks, or a weighted stream is absent.
    """
    if nbest.reference is None:
        raise InvalidList(
            "no reference; errors cannot be counted without", list_id=nbest.id, field="reference"
        )
    errors = counting.against(nbest.reference, words, nbest.id)
    counts = tuple(errors(hypothesis.text) for hypothesis in nbest.hypotheses)
    first = first_pass_index(nbest, first_pass_weights)
    return EvaluatedList(nbest.id, nbest.group, counts, first, counting.unit)


def first_pass_index(nbest: NBestList, weights: Mapping[str, float] | None = None) -> int:
    """Which hypothesis the recogniser put first: the best by ``weights``, else by the ``original_rank`` that
    a rescored list says, else the list's first.

    Raises:
        InvalidList: a weighted stream is absent, or only some hypotheses say a rank.
    """
    if weights is not None:
        missing = sorted(set(weights) - set(nbest.streams))
        if missing:
            raise InvalidList(
                "no such stream in this list", list_id=nbest.id, field=f'streams["{missing[0]}"]'
            )
        totals = np.zeros(len(nbest.hypotheses))
        for name, weight in weights.items():
            totals += weight * np.array(nbest.streams[name])
        return int(best_first(totals)[0])
    if not any("original_rank" in hypothesis.fields for hypothesis in nbest.hypotheses):
        return 0
    ranks: list[int] = []
    for index, hypothesis in enumerate(nbest.hypotheses):
        rank = hypothesis.fields.get("original_rank")
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise InvalidList(
                f"expected an integer in every hypothesis, not {rank!r}",
                list_id=nbest.id,
                hypothesis=index,
                field="original_rank",
            )
        merged = hypothesis.fields.get("merged_ranks") or (rank,)  # a merged one stands for all its members
        ranks.append(min(merged))
    return ranks.index(min(ranks))
