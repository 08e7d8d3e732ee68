"""Owns the order of a list: ties settled, posteriors, merging of equal hypotheses (pure)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import InvalidList
from rescorer.types import NBestList, RescoredHypothesis, RescoredList, Weights

TIE = 4
"""Totals are compared after rounding to so many decimals: float32 products change in the last digits with
the company a hypothesis is scored in, and an answer must not."""
LARGEST_TOTAL = 1e300
"""Either side of 0: differences of what is larger, and its rounding, are no longer finite."""


def best_first(totals: np.ndarray) -> np.ndarray:
    """Indices from best to worst, ties in the original order: (H,) int64."""
    return np.argsort(-np.round(totals, TIE), kind="stable")


def log_posteriors(totals: np.ndarray) -> np.ndarray:
    """ln of the softmax of the totals, (H,) float64."""
    return totals - np.logaddexp.reduce(totals)


def merge_equal(keys: Sequence[Hashable], totals: np.ndarray) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Adds up, in probability, the totals of hypotheses with equal keys (log-sum-exp).

    Args:
        keys: what makes two hypotheses the same, such as their canonical words.
        totals: (H,).

    Returns:
        (H,) totals, where each group's best member has the group's sum and the others -inf; and for every
        hypothesis the indices that were merged into it, none for those that were merged away.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    merged = np.full(len(totals), -np.inf)
    members: list[tuple[int, ...]] = [()] * len(totals)
    for group in groups.values():
        keeper = group[int(best_first(totals[group])[0])]
        merged[keeper] = np.logaddexp.reduce(totals[group])
        members[keeper] = tuple(group)
    return merged, members


@dataclass(frozen=True, slots=True)
class Ranking:
    """A list in its new order, by columns: an object for every hypothesis, made to be read once, would cost a
    service more than the order itself. All columns are by place as the list came."""

    nbest: NBestList
    order: Sequence[int]
    """Places from best to worst; those that were merged away are left out."""
    totals: Sequence[float]
    log_posteriors: Sequence[float]
    components: Mapping[str, Sequence[float]]
    """Unweighted, by name."""
    members: Sequence[tuple[int, ...]]
    """Places merged into each; empty where merging was not asked for."""

    def rescored(self, weights: Weights, model: str) -> RescoredList:
        """The list of hypotheses that it stands for."""
        nbest = self.nbest
        hypotheses = tuple(
            RescoredHypothesis(
                text=nbest.hypotheses[i].text,
                original_rank=i,
                total=self.totals[i],
                log_posterior=self.log_posteriors[i],
                components={name: values[i] for name, values in self.components.items()},
                merged_ranks=self.members[i],
                fields=nbest.hypotheses[i].fields,
            )
            for i in self.order
        )
        kept = (nbest.reference, nbest.group, nbest.fields, nbest.context)
        return RescoredList(nbest.id, hypotheses, weights, model, *kept)


def ranking(
    nbest: NBestList,
    components: Mapping[str, np.ndarray],
    total: np.ndarray,
    merge_by: Sequence[Hashable] | None = None,
    *,
    keep_order: bool = False,
) -> Ranking:
    """A list in the order of its totals.

    Args:
        components: (H,) float64 by name.
        total: (H,) float64 of the components.
        merge_by: as ``merge_equal``'s keys; None: nothing is merged.
        keep_order: leave the hypotheses in the order they came.

    Raises:
        InvalidList: a total is not finite, or larger than ``LARGEST_TOTAL``.
    """
    for i in np.flatnonzero(~(np.abs(total) <= LARGEST_TOTAL))[:1]:
        message = f"the total is {total[i]}; the scores or weights are too large"
        raise InvalidList(message, list_id=nbest.id, hypothesis=int(i), field="streams")
    members: list[tuple[int, ...]] = [()] * len(total)
    if merge_by is not None:
        total, members = merge_equal(merge_by, total)
    places = range(len(total)) if keep_order else best_first(total).tolist()
    return Ranking(
        nbest,
        [i for i in places if merge_by is None or members[i]],
        total.tolist(),
        log_posteriors(total).tolist(),
        {name: values.tolist() for name, values in components.items()},
        members,
    )
