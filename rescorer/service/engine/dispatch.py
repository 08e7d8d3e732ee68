"""Score the lists of a request before its deadline, degrading if permitted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rescorer.errors import DeadlineExceeded
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.scoring.batch import split
from rescorer.scoring.components import PreparedList
from rescorer.scoring.ranker import ListRanker
from rescorer.service.engine.batcher import Batcher
from rescorer.service.engine.work_item import ItemScores, WorkItem
from rescorer.service.observability.metrics import Metrics

FALLBACK_SHARE, FALLBACK_BOUNDS_S = 0.2, (0.03, 0.25)
"""Time reserved for the fallback: this share of the time to the deadline, within these bounds in seconds."""
MAX_RESPONSE_SHARE = 0.5
"""Largest share of the time to the deadline that is kept for the response of a call with a fallback."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """Client, deadline and permitted fallback of a request."""

    client: Hashable
    request_id: str
    arrived_at: float
    """In ``time.perf_counter`` seconds."""
    deadline: float
    """In ``time.monotonic`` seconds."""
    fallback: int = pb.FALLBACK_UNSPECIFIED
    response_s: float = 0.0
    """Time that deciding and writing the response will take, in seconds."""

    @property
    def remaining_s(self) -> float:
        """Time to the deadline."""
        return self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class ListOutcome:
    """The scores of one list, or the error that prevented its scoring."""

    items: tuple[ItemScores, ...] = ()
    """Scores of its hypotheses, in their order."""
    degradation: pb.Degradation = pb.DEGRADATION_UNSPECIFIED
    error: Exception | None = None


class Dispatcher:
    """Score lists by means of a batcher."""

    def __init__(self, batcher: Batcher, max_batch_tokens: int, metrics: Metrics) -> None:
        self._batcher = batcher
        self._max_batch_tokens = max_batch_tokens
        self._metrics = metrics

    async def score_lists(
        self,
        ranker: ListRanker,
        lists: Sequence[PreparedList],
        call: CallContext,
        *,
        late: bool = False,
    ) -> list[ListOutcome]:
        """Return the outcome of each list, in input order.

        Args:
            late: skip complete scoring, for which there is no time, and use only the permitted fallback.

        Raises:
            DeadlineExceeded: If the deadline passed before all lists were scored.
        """
        outcomes: dict[int, ListOutcome] = {}
        fallback, deadline, reserve_s = call.fallback, call.deadline, 0.0
        if fallback:
            remaining_s = call.remaining_s
            low, high = FALLBACK_BOUNDS_S
            reserve_s = min(max(FALLBACK_SHARE * remaining_s, low), high)
            deadline -= min(call.response_s, MAX_RESPONSE_SHARE * max(0.0, remaining_s))
        if not late:
            until = deadline - reserve_s
            outcomes |= await self._score_until(ranker, lists, range(len(lists)), call, until)
        missing = [index for index in range(len(lists)) if index not in outcomes]
        if missing and fallback:
            until = deadline - reserve_s / 2
            outcomes |= await self._score_until(ranker, lists, missing, call, until, ngram_only=True)
        if fallback == pb.FALLBACK_FIRST_PASS:
            for index in missing:
                outcomes.setdefault(index, ListOutcome(degradation=pb.DEGRADATION_FIRST_PASS))
        if len(outcomes) < len(lists):
            raise DeadlineExceeded(
                "the deadline (the caller's, or max_wait_s) passed before all lists were scored; "
                "allow more time or permit a fallback"
            )
        return [outcomes[index] for index in range(len(lists))]

    async def _score_until(
        self,
        ranker: ListRanker,
        lists: Sequence[PreparedList],
        indices: Sequence[int],
        call: CallContext,
        until: float,
        *,
        ngram_only: bool = False,
    ) -> dict[int, ListOutcome]:
        """Return, by index, the outcomes of the lists that are scored in time.

        Args:
            until: in ``time.monotonic`` seconds.
            ngram_only: score with the n-gram model alone, before other waiting items.
        """
        bundle, models = ranker.bundle, (ranker.bundle.ngram,) if ngram_only else ()
        degradation = pb.DEGRADATION_NGRAM if ngram_only else pb.DEGRADATION_UNSPECIFIED
        items_by_list = {
            index: [
                WorkItem(part, bundle.label, until, models, call.request_id)
                for part in split(lists[index], self._max_batch_tokens, backward=bool(bundle.backward))
            ]
            for index in indices
        }
        all_items = [item for items in items_by_list.values() for item in items]
        for item in all_items:
            self._batcher.put(item, call.client, urgent=ngram_only)
        try:
            if all_items:
                futures = [item.future for item in all_items]
                await asyncio.wait(futures, timeout=max(0.0, until - time.monotonic()))
            return {
                index: make_outcome(items, degradation)
                for index, items in items_by_list.items()
                if all(is_settled(item) for item in items)
            }
        finally:
            self._count_outcomes(all_items)
            self._batcher.cancel(all_items)

    def _count_outcomes(self, items: Sequence[WorkItem]) -> None:
        """Count work items that their caller no longer waits for."""
        now = time.monotonic()
        for item in items:
            if not item.future.done():
                self._metrics.record_item("expired" if now >= item.deadline else "cancelled")
            elif error := item.future.exception():
                is_late = isinstance(error, DeadlineExceeded)
                self._metrics.record_item("expired" if is_late else "failed")
            else:
                self._metrics.record_item("scored", item.future.result().queue.seconds)


def is_settled(item: WorkItem) -> bool:
    """Whether an item has its scores, or an error that more time would not have prevented."""
    return item.future.done() and not isinstance(item.future.exception(), DeadlineExceeded)


def make_outcome(items: Sequence[WorkItem], degradation: pb.Degradation) -> ListOutcome:
    """Combine the results of a list's work items, all of them finished; the first error counts."""
    for item in items:
        error = item.future.exception()
        if isinstance(error, Exception):
            return ListOutcome(error=error)
    return ListOutcome(tuple(item.future.result() for item in items), degradation)
