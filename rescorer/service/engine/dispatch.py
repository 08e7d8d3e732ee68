"""Owns how the lists of one request come by their scores in time, or by less where the caller allows that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rescorer.errors import DeadlineExceeded
from rescorer.list_ranker import ListRanker, PreparedList
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.engine.batcher import Batcher
from rescorer.service.engine.work_item import ItemScores, WorkItem, make_work_items
from rescorer.service.observability.metrics import Metrics

NEAR_PART, NEAR_S = 0.2, (0.03, 0.25)
"""The deadline is near when so much of the caller's time is left, within these bounds in seconds."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who waits for a request, until when, and what may be answered instead."""

    client: Hashable
    request_id: str
    arrived: float
    """In ``time.perf_counter`` seconds."""
    deadline: float
    """In ``time.monotonic`` seconds."""
    fallback: int = pb.FALLBACK_UNSPECIFIED

    @property
    def remaining_s(self) -> float:
        return self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class ListOutcome:
    """What became of one list."""

    parts: tuple[ItemScores, ...] = ()
    """Of its hypotheses, in their order."""
    degradation: pb.Degradation = pb.DEGRADATION_UNSPECIFIED
    fault: Exception | None = None


class Dispatcher:
    """Has lists scored by a batcher."""

    def __init__(self, batcher: Batcher, max_batch_tokens: int, metrics: Metrics) -> None:
        self._batcher = batcher
        self._max_batch_tokens = max_batch_tokens
        self._metrics = metrics

    async def outcomes(
        self, ranker: ListRanker, lists: Sequence[PreparedList], caller: Caller, *, late: bool = False
    ) -> list[ListOutcome]:
        """One a list, in their order.

        Args:
            late: it is known that there is no time for the whole; only what the caller takes instead.

        Raises:
            DeadlineExceeded: the time was over first.
        """
        found: dict[int, ListOutcome] = {}
        fallback, deadline = caller.fallback, caller.deadline
        low, high = NEAR_S
        near_s = min(max(NEAR_PART * caller.remaining_s, low), high) if fallback else 0.0
        if not late:
            found |= await self._scored(ranker, lists, range(len(lists)), caller, deadline - near_s)
        left = [index for index in range(len(lists)) if index not in found]
        if left and fallback:
            found |= await self._scored(ranker, lists, left, caller, deadline - near_s / 2, ngram_only=True)
        if fallback == pb.FALLBACK_FIRST_PASS:
            for index in left:
                found.setdefault(index, ListOutcome(degradation=pb.DEGRADATION_FIRST_PASS))
        if len(found) < len(lists):
            raise DeadlineExceeded(
                "the deadline, the caller's or that of max_wait_s, passed before all lists were scored"
            )
        return [found[index] for index in range(len(lists))]

    async def _scored(
        self,
        ranker: ListRanker,
        lists: Sequence[PreparedList],
        chosen: Sequence[int],
        caller: Caller,
        until: float,
        *,
        ngram_only: bool = False,
    ) -> dict[int, ListOutcome]:
        """The outcomes of those of the chosen lists that are scored in time."""
        only = (ranker.bundle.ngram,) if ngram_only else ()
        degradation = pb.DEGRADATION_NGRAM if ngram_only else pb.DEGRADATION_UNSPECIFIED
        works = {
            index: make_work_items(
                ranker, lists[index], self._max_batch_tokens, until, only, caller.request_id
            )
            for index in chosen
        }
        every = [work for of_list in works.values() for work in of_list]
        for work in every:
            self._batcher.put(work, caller.client, urgent=ngram_only)
        try:
            if every:
                answers = [work.answer for work in every]
                await asyncio.wait(answers, timeout=max(0.0, until - time.monotonic()))
            return {
                index: outcome(of_list, degradation)
                for index, of_list in works.items()
                if all(is_answered(work) for work in of_list)
            }
        finally:
            self._count_outcomes(every)
            self._batcher.give_up(every)

    def _count_outcomes(self, items: Sequence[WorkItem]) -> None:
        """Count work items that their caller no longer waits for."""
        now = time.monotonic()
        for item in items:
            if not item.answer.done():
                self._metrics.record_item("expired" if now >= item.deadline else "cancelled")
            elif error := item.answer.exception():
                is_late = isinstance(error, DeadlineExceeded)
                self._metrics.record_item("expired" if is_late else "failed")
            else:
                self._metrics.record_item("scored", item.answer.result().queue.seconds)


def is_answered(work: WorkItem) -> bool:
    """Whether its scores are there, or a fault that more time would not have helped."""
    return work.answer.done() and not isinstance(work.answer.exception(), DeadlineExceeded)


def outcome(works: Sequence[WorkItem], degradation: pb.Degradation) -> ListOutcome:
    for work in works:
        fault = work.answer.exception()
        if isinstance(fault, Exception):
            return ListOutcome(fault=fault)
    return ListOutcome(tuple(work.answer.result() for work in works), degradation)
