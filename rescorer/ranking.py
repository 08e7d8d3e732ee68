"""Rank the hypotheses of a list: settle ties, compute posteriors, merge equal and drop empty hypotheses."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import InvalidList
from rescorer.types import (
    MAXIMUM,
    ConsensusWord,
    DecisionRule,
    NBestList,
    RescoredHypothesis,
    RescoredList,
    Weights,
    WordConfidence,
)

TIE_DECIMALS = 4
"""Number of decimals to which totals are rounded before they are compared. Otherwise the ranking would depend
on which hypotheses share a batch, as the last digits of float32 products do."""
MAX_TOTAL = 1e300  # maximum absolute value of a total; subtracting or rounding larger totals would overflow


def best_first(totals: np.ndarray) -> np.ndarray:
    """Return the indices of hypotheses from best to worst, ties in input order: (H,) int64."""
    return np.argsort(-np.round(totals, TIE_DECIMALS), kind="stable")


def log_posteriors(totals: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return the logarithm of the softmax of totals / temperature, (H,) float64.

    The largest total is subtracted first: posteriors depend on small differences between totals, which the
    log-sum-exp of large totals would round away.

    Args:
        totals: (H,) in nats; -inf for hypotheses that were merged or dropped.
        temperature: positive; larger values make the posteriors more even.
    """
    relative = totals - totals.max(initial=-np.inf)
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # -inf is the right answer
            relative /= temperature
    return relative - np.logaddexp.reduce(relative)


def posteriors(totals: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return the softmax of totals / temperature, (H,) float64; see ``log_posteriors``.

    Posteriors depend on the weights and the temperature; they are not calibrated probabilities.
    """
    return np.exp(log_posteriors(totals, temperature))


def merge_equal(keys: Sequence[Hashable], totals: np.ndarray) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Merge hypotheses with equal keys, such as canonical words; their probabilities are added.

    Returns:
        (H,) totals, where the best hypothesis of each group has the total of the group, and the others have
        -inf; and for each hypothesis the indices merged into it, empty if it was merged into another one.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    merged = np.full(len(totals), -np.inf)
    members: list[tuple[int, ...]] = [()] * len(totals)
    for group in groups.values():
        best = group[int(best_first(totals[group])[0])]
        merged[best] = np.logaddexp.reduce(totals[group])
        members[best] = tuple(group)
    return merged, members


def find_empty(words: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the positions of the hypotheses to drop because they have no words.

    If no hypothesis has words, the first one stays.
    """
    empty = tuple(i for i, hypothesis in enumerate(words) if not hypothesis)
    return empty[1:] if len(empty) == len(words) else empty


def select_and_order(
    totals: np.ndarray,
    merge_by: Sequence[Hashable] | None = None,
    dropped: Sequence[int] = (),
    *,
    keep_order: bool = False,
) -> tuple[list[int], np.ndarray, list[tuple[int, ...]]]:
    """Order the hypotheses of a list, leaving out those that are dropped or merged into another one.

    Args:
        totals: (H,), finite.
        merge_by: a key per hypothesis; those with equal keys are merged. None: no merging.
        dropped: positions of the hypotheses to drop; at least one other hypothesis must remain.
        keep_order: leave the hypotheses in input order.

    Returns:
        The order, as positions from best to worst; the totals after merging, -inf for hypotheses that are not
        in the order; and for each hypothesis the positions merged into it, () for all without merging.
    """
    members: list[tuple[int, ...]] = [()] * len(totals)
    if dropped:
        totals = totals.copy()
        totals[list(dropped)] = -np.inf
    if merge_by is not None:
        left_out = set(dropped)
        keys = [i if i in left_out else key for i, key in enumerate(merge_by)] if dropped else merge_by
        totals, members = merge_equal(keys, totals)
    positions = range(len(totals)) if keep_order else best_first(totals).tolist()
    if merge_by is not None or dropped:
        positions = [i for i in positions if totals[i] > -np.inf]
    return list(positions), totals, members


@dataclass(frozen=True, slots=True)
class Ranking:
    """A ranked list, column by column.

    All columns are indexed by the input position of a hypothesis. Files and answers of the service are
    written from columns, because building an object per hypothesis would take longer than ranking.
    """

    nbest: NBestList
    order: Sequence[int]
    """Input positions from best to worst, without hypotheses that were dropped or merged into another."""
    totals: np.ndarray
    """(H,) float64; -inf for hypotheses that are not in ``order``."""
    log_posteriors: np.ndarray
    """(H,) float64; -inf for hypotheses that are not in ``order``."""
    components: Mapping[str, np.ndarray]
    """Unweighted scores and counts, (H,) float64 by name."""
    members: Sequence[tuple[int, ...]]
    """Input positions merged into each hypothesis; empty tuples if merging was not requested."""
    dropped: Sequence[int] = ()
    """Input positions of the hypotheses that were dropped because they have no words."""
    decision: DecisionRule | None = MAXIMUM
    """Rule that determined the order; None if the list was not ranked."""
    expected_errors: np.ndarray | None = None
    """Expected errors under minimum Bayes risk, NaN for hypotheses that are not in ``order``; None under
    other rules."""
    consensus: tuple[ConsensusWord, ...] = ()
    """Words that a confusion network decided for; empty under other rules."""
    consensus_position: int | None = None
    """Input position of the best hypothesis that has exactly the words of the consensus; None if none has."""
    confidence: float | None = None
    """Probability that the best hypothesis is right; None if the weights are not calibrated."""
    word_confidences: Sequence[WordConfidence] = ()
    """Probability that each word of the best hypothesis is right; empty if the weights are not calibrated."""
    degradation: str = ""
    """``length``, or empty; see ``RescoredList.degradation``."""
    previous_unread_by: Sequence[str] = ()
    """See ``RescoredList``."""

    def to_rescored_list(self, weights: Weights, model: str) -> RescoredList:
        """Build the answer for the list, with an object per hypothesis in ranked order.

        Args:
            weights: the weights of the totals.
            model: label of the bundle that scored the list.
        """
        nbest = self.nbest
        totals, log_posteriors = self.totals.tolist(), self.log_posteriors.tolist()
        names, columns = [*self.components], [values.tolist() for values in self.components.values()]
        rows = [*zip(*columns, strict=True)] or [()] * len(totals)
        components = [dict(zip(names, row, strict=True)) for row in rows]
        errors = None if self.expected_errors is None else self.expected_errors.tolist()
        given = tuple(nbest.hypotheses)
        hypotheses = tuple(
            RescoredHypothesis(
                text=given[i].text,
                original_rank=i,
                total=totals[i],
                log_posterior=log_posteriors[i],
                components=components[i],
                merged_ranks=self.members[i],
                fields=given[i].fields,
                expected_errors=None if errors is None else errors[i],
                confidence=self.confidence if rank == 0 else None,
                word_confidences=tuple(self.word_confidences) if rank == 0 else (),
                generated=given[i].generated,
            )
            for rank, i in enumerate(self.order)
        )
        return RescoredList(
            nbest.id,
            hypotheses,
            weights,
            model,
            nbest.reference,
            nbest.group,
            nbest.fields,
            nbest.context,
            self.degradation,
            dropped_ranks=tuple(self.dropped),
            decision=self.decision,
            consensus=self.consensus,
            consensus_rank=self.consensus_position,
            previous=nbest.previous,
            previous_unread_by=tuple(self.previous_unread_by),
        )


def decided_text(ranked: Ranking) -> str:
    """Return the text that won: the consensus if the rule makes one, otherwise that of the best
    hypothesis."""
    if ranked.decision is not None and ranked.decision.kind == "confusion_network":
        if ranked.consensus_position is None:
            return " ".join(word.surface for word in ranked.consensus)
        return ranked.nbest.texts[ranked.consensus_position]
    return ranked.nbest.texts[ranked.order[0]]


def ranking(
    nbest: NBestList,
    components: Mapping[str, np.ndarray],
    total: np.ndarray,
    merge_by: Sequence[Hashable] | None = None,
    dropped: Sequence[int] = (),
    *,
    keep_order: bool = False,
) -> Ranking:
    """Rank a list by ``total``, (H,) float64; further arguments are those of ``select_and_order``.

    Raises:
        InvalidList: a total is not finite, or its absolute value is larger than ``MAX_TOTAL``.
    """
    sizes = np.abs(total)
    if not sizes.max(initial=0.0) <= MAX_TOTAL:  # or NaN
        i = np.flatnonzero(~(sizes <= MAX_TOTAL))[0]
        message = f"the total is {total[i]}; the scores or weights are too large"
        raise InvalidList(message, list_id=nbest.id, hypothesis=int(i), field="streams")
    order, total, members = select_and_order(total, merge_by, dropped, keep_order=keep_order)
    rule = None if keep_order else MAXIMUM
    return Ranking(nbest, order, total, log_posteriors(total), components, members, dropped, decision=rule)


def rank_together(
    lists: Sequence[NBestList], components: Mapping[str, np.ndarray], totals: np.ndarray
) -> list[Ranking]:
    """Rank many lists as ``ranking`` does each by itself, without merging and dropping.

    Args:
        components: (N,) float64 by name, for the hypotheses of all lists one after another.
        totals: (N,) float64, at most ``MAX_TOTAL``.
    """
    counts = np.array([len(nbest.hypotheses) for nbest in lists])
    ends = np.cumsum(counts)
    starts = ends - counts
    by_list = np.repeat(np.arange(len(lists)), counts)
    order = np.lexsort((-np.round(totals, TIE_DECIMALS), by_list)) - starts[by_list]
    relative = totals - np.maximum.reduceat(totals, starts)[by_list]
    posteriors = relative - np.logaddexp.reduceat(relative, starts)[by_list]
    positions, rankings = order.tolist(), list[Ranking]()
    for nbest, begin, end in zip(lists, starts.tolist(), ends.tolist(), strict=True):
        rows = slice(begin, end)
        columns = {name: column[rows] for name, column in components.items()}
        members: list[tuple[int, ...]] = [()] * (end - begin)
        rankings.append(Ranking(nbest, positions[rows], totals[rows], posteriors[rows], columns, members))
    return rankings
