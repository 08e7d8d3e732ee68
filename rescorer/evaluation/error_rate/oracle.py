"""Count the errors of every hypothesis of a list, including the oracle: the hypothesis with the fewest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.ranking import best_first, find_empty, select_and_order
from rescorer.score_combination import WORDS, totals
from rescorer.trie import Words
from rescorer.types import ErrorUnit, NBestList, Weights


@dataclass(frozen=True, slots=True)
class EvaluatedList:
    """The errors of every hypothesis of a list, in the order of the list."""

    id: str
    group: str
    hypotheses: tuple[WordErrors, ...]
    first_pass: WordErrors
    """Errors of the hypothesis that the recogniser ranked first, which may have been dropped since."""
    unit: ErrorUnit = "word"
    """What was counted: ``word``, ``character`` or ``mixed``."""

    @property
    def system(self) -> WordErrors:
        """Errors of the first hypothesis of the list."""
        return self.hypotheses[0]

    @property
    def oracle(self) -> WordErrors:
        """Errors of the hypothesis with the fewest."""
        return min(self.hypotheses, key=lambda counts: counts.errors)

    @property
    def worst(self) -> WordErrors:
        """Errors of the hypothesis with the most."""
        return max(self.hypotheses, key=lambda counts: counts.errors)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which hypotheses of a list take part in its ranking; see ``rescorer.ranking.select_and_order``."""

    merge: bool = False
    """Merge hypotheses with equal canonical words, adding their probabilities."""
    drop_empty: bool = False
    """Drop hypotheses without canonical words."""

    def __bool__(self) -> bool:
        return self.merge or self.drop_empty

    def order(
        self, words: Sequence[Words], totals: np.ndarray, *, keep_order: bool = False
    ) -> tuple[list[int], np.ndarray]:
        """Return the positions of the selected hypotheses, best first, and all totals after merging."""
        dropped = find_empty(words) if self.drop_empty else ()
        merge_by = words if self.merge else None
        return select_and_order(totals, merge_by, dropped, keep_order=keep_order)[:2]


ALL = Selection()
"""Neither merge nor drop."""


def evaluate_list(
    nbest: NBestList,
    words: Callable[[str], Words],
    first_pass_weights: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    words_read: Callable[[str], Words] | None = None,
) -> EvaluatedList:
    """Count the errors of every hypothesis against the reference of the list.

    For each hypothesis, a reference with alternatives counts as the reading that matches it best.

    Args:
        words: converts reference and hypotheses to canonical words: ``Normaliser.normalise``.
        first_pass_weights: weights that define the first pass; None for the recogniser's order.
        words_read: converts hypotheses to the words that the first pass counts; None: ``words``.

    Raises:
        InvalidList: there is no reference, its alternatives or the ranks are malformed, or a weighted stream
            is missing.
    """
    if nbest.reference is None:
        raise InvalidList(
            "no reference; give references with --reference FILE", list_id=nbest.id, field="reference"
        )
    count = counting.counter_for(nbest.reference, words, nbest.id)
    errors = tuple(count(hypothesis.text) for hypothesis in nbest.hypotheses)
    first = find_first_pass(nbest, words_read or words, first_pass_weights)
    return EvaluatedList(nbest.id, nbest.group, errors, errors[first], counting.unit)


def score_first_pass(nbest: NBestList, words: Sequence[Words], weights: Weights) -> np.ndarray:
    """Compute the totals of the first pass, (H,), from the streams and the number of words.

    Raises:
        InvalidList: a weighted stream is missing, or a total is not finite.
    """
    missing = sorted(name for name, weight in weights.streams.items() if weight and name not in nbest.streams)
    if missing:
        raise InvalidList("no such stream in this list", list_id=nbest.id, field=f'streams["{missing[0]}"]')
    components = {name: np.array(values, dtype=np.float64) for name, values in nbest.streams.items()}
    n_words = np.array([len(hypothesis) for hypothesis in words], dtype=np.float64)
    total = totals(
        {**components, WORDS: n_words}, replace(weights, lm={}, oov=0.0, rerankers={}, components={})
    )
    if not np.isfinite(total).all():
        message = "the total is not finite; the scores or weights are too large"
        raise InvalidList(message, list_id=nbest.id, field="streams")
    return total


def find_first_pass_totals(
    nbest: NBestList, words: Sequence[Words], weights: Weights | None = None
) -> np.ndarray | None:
    """Find the scores by which the recogniser ranked, (H,): by ``weights``, or the only stream.

    None if there are no weights and several streams, or none at all.
    """
    if weights is None and len(nbest.streams) != 1:
        return None
    return score_first_pass(nbest, words, weights or Weights("first pass", dict.fromkeys(nbest.streams, 1.0)))


def find_first_pass(
    nbest: NBestList, normalise: Callable[[str], Words], weights: Weights | None = None
) -> int:
    """Find the index of the hypothesis that the recogniser ranked first; see ``find_first_pass_order``."""
    return find_first_pass_order(nbest, normalise, weights)[0]


def find_first_pass_order(
    nbest: NBestList, normalise: Callable[[str], Words], weights: Weights | None = None
) -> list[int]:
    """Find the indices of the hypotheses in the order in which the recogniser ranked them.

    That is by ``weights`` if given, else by the ``original_rank`` fields of a re-ranked list, else the order
    of the list. Generated hypotheses, which the recogniser did not rank, come last.

    Raises:
        InvalidList: a weighted stream is missing, or only some hypotheses have a rank.
    """
    order = _order_all(nbest, normalise, weights)
    return sorted(order, key=lambda index: nbest.hypotheses[index].generated is not None)


def _order_all(nbest: NBestList, normalise: Callable[[str], Words], weights: Weights | None) -> list[int]:
    if weights is not None:
        words = [normalise(hypothesis.text) for hypothesis in nbest.hypotheses]
        order: list[int] = best_first(score_first_pass(nbest, words, weights)).tolist()
        return order
    if not any("original_rank" in hypothesis.fields for hypothesis in nbest.hypotheses):
        return list(range(len(nbest.hypotheses)))
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
    return sorted(range(len(ranks)), key=ranks.__getitem__)
