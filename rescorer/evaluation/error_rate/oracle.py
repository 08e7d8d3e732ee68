"""Count the errors of every hypothesis of a list, including the oracle: the hypothesis with the fewest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.ranking import best_first
from rescorer.types import NBestList


@dataclass(frozen=True, slots=True)
class EvaluatedList:
    """The errors of every hypothesis of a list, in the order of the list."""

    id: str
    group: str
    hypotheses: tuple[WordErrors, ...]
    first_pass_index: int = 0
    """Index of the hypothesis that the recogniser ranked first."""
    unit: str = "word"
    """What was counted: ``word`` or ``character``."""

    @property
    def system(self) -> WordErrors:
        """Errors of the first hypothesis of the list."""
        return self.hypotheses[0]

    @property
    def first_pass(self) -> WordErrors:
        """Errors of the hypothesis that the recogniser ranked first."""
        return self.hypotheses[self.first_pass_index]

    @property
    def oracle(self) -> WordErrors:
        """Errors of the hypothesis with the fewest."""
        return min(self.hypotheses, key=lambda counts: counts.errors)

    @property
    def worst(self) -> WordErrors:
        """Errors of the hypothesis with the most."""
        return max(self.hypotheses, key=lambda counts: counts.errors)


def evaluate_list(
    nbest: NBestList,
    words: Callable[[str], tuple[str, ...]],
    first_pass_weights: Mapping[str, float] | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
) -> EvaluatedList:
    """Count the errors of every hypothesis against the reference of the list.

    For each hypothesis, a reference with alternatives counts as the reading that matches it best.

    Args:
        words: converts reference and hypotheses to canonical words: ``Normaliser.words``.
        first_pass_weights: stream weights that define the first pass; None for the recogniser's order.

    Raises:
        InvalidList: there is no reference, its alternatives or the ranks are malformed, or a weighted stream
            is missing.
    """
    if nbest.reference is None:
        raise InvalidList(
            "no reference; errors cannot be counted without one", list_id=nbest.id, field="reference"
        )
    count = counting.counter_for(nbest.reference, words, nbest.id)
    errors = tuple(count(hypothesis.text) for hypothesis in nbest.hypotheses)
    first = find_first_pass(nbest, first_pass_weights)
    return EvaluatedList(nbest.id, nbest.group, errors, first, counting.unit)


def find_first_pass(nbest: NBestList, weights: Mapping[str, float] | None = None) -> int:
    """Find the index of the hypothesis that the recogniser ranked first.

    That is the best one by ``weights`` if given, else by the ``original_rank`` fields of a re-ranked list,
    else the first one of the list.

    Raises:
        InvalidList: a weighted stream is missing, or only some hypotheses have a rank.
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
                f"expected an integer in every hypothesis, got {rank!r}",
                list_id=nbest.id,
                hypothesis=index,
                field="original_rank",
            )
        # a merged hypothesis has the ranks of all its members
        merged = hypothesis.fields.get("merged_ranks") or (rank,)
        ranks.append(min(merged))
    return ranks.index(min(ranks))
