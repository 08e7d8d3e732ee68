"""Owns the shadow: a second bundle that scores a share of what the first has answered, to compare them.

Nothing of it can reach a caller. A list comes here after its answer is sent, waits in a short queue of its
own, and is dropped where requests wait for the first bundle. The models are in a process of their own, of low
priority, so that neither their faults nor their memory nor Python's lock are the first bundle's.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import structlog

from rescorer.errors import DeadlineExceeded, RescorerError
from rescorer.list_ranker import ListRanker
from rescorer.protocol.messages import list_from_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import Ranking
from rescorer.service.api.planning import Plan, RescoreRequest, ranked_list, weights_of
from rescorer.service.engine.batcher import Batcher
from rescorer.service.engine.dispatch import ListOutcome
from rescorer.service.engine.offload import Offloader
from rescorer.service.engine.work_item import WorkItem, make_work_items
from rescorer.service.models.repository import ModelRepository
from rescorer.service.observability.metrics import Metrics
from rescorer.service.workers.pool import WorkerPool

MAX_WAITING_LISTS = 64
"""Lists that wait for the shadow keep their requests in memory; what comes above it is dropped."""

Result = TypeVar("Result")

log = structlog.get_logger()


class Answered(NamedTuple):
    """A list that the first bundle has answered."""

    request: RescoreRequest
    place: int
    """Of the list in the request, 0-based."""
    answer: pb.RescoredList
    request_id: str


class Agreement(NamedTuple):
    """How far two orders of one list are the same."""

    same_best: bool
    pairs_alike: float
    """Share of the pairs of hypotheses that both have in the same order: (1 + Kendall's τ) / 2."""


class Shadow:
    """A second bundle, compared with the first; made in the event loop.

    Args:
        models: the shadow's alone, held by ``pool``.
        first: label of the bundle that is shadowed.
        busy: whether requests wait for it.
        share: of the lists, 0 to 1.
        max_batch_tokens: as of ``Batcher``.
    """

    def __init__(
        self,
        models: ModelRepository,
        pool: WorkerPool,
        first: Callable[[], str],
        busy: Callable[[], bool],
        share: float,
        max_batch_tokens: int,
        metrics: Metrics,
    ) -> None:
        self.models = models
        self._pool = pool
        self._first, self._busy = first, busy
        self._share, self._max_batch_tokens = share, max_batch_tokens
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, "shadow")
        self._batcher = Batcher(pool, Offloader(self._thread, 0), max_batch_tokens)
        self._waiting: asyncio.Queue[Answered] = asyncio.Queue(MAX_WAITING_LISTS)
        self._running: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._begun = False

    def start(self) -> None:
        """Loads the bundle by and by, and compares from then on."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends at once, whatever is left."""
        tasks = [task for task in (self._running, self._reloading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._batcher.stop()
        await self._pool.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def reload(self, *, again: bool) -> None:
        """As of ``ModelRepository``, but by and by: nobody waits for it. What is wrong is told in the log."""
        if self._begun and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.create_task(self._reload(again))

    def offer(
        self,
        request: RescoreRequest,
        response: pb.RescoreResponse | pb.RescoreStreamResponse,
        request_id: str,
    ) -> None:
        """Chooses among the lists of a request whose answer is sent. Raises nothing."""
        try:
            if response.model != self._first():
                return
            for place, answer in enumerate(response.lists):
                whole = not answer.status.code and not answer.degradation
                if whole and is_chosen(request_id, answer.id, self._share):
                    self._put(Answered(request, place, answer, request_id))
        except Exception as fault:
            self._failed(request_id, fault)

    def _put(self, each: Answered) -> None:
        if self._busy() or self._waiting.full():
            self._metrics.shadow_lists.labels("dropped").inc()
        else:
            self._waiting.put_nowait(each)

    async def _reload(self, again: bool) -> None:
        try:
            await self.models.reload(again=again)
        except RescorerError as fault:
            log.error("the shadow cannot be loaded", fault=str(fault))

    async def _run(self) -> None:
        try:
            await self._pool.start()
            await self.models.start()
        except (RescorerError, OSError) as fault:  # a reload may mend it
            log.error("the shadow cannot be loaded", fault=str(fault))
        self._batcher.start()
        self._begun = True
        while True:
            each = await self._waiting.get()
            if self._busy():
                self._metrics.shadow_lists.labels("dropped").inc()
                continue
            try:
                await self._compare(each)
            except Exception as fault:
                self._failed(each.request_id, fault)

    async def _compare(self, each: Answered) -> None:
        began = time.perf_counter()
        with self.models.lease() as ranker:
            plan = await self._in_thread(plan_of, ranker, each)
            works = await self._scored(ranker, plan, each.request_id)
            found = await self._in_thread(agreement_of, plan, works, each)
        self._metrics.shadowed(ranker.bundle.label, *found, time.perf_counter() - began)

    async def _scored(self, ranker: ListRanker, plan: Plan, request_id: str) -> list[WorkItem]:
        """The list as work that has its scores, or the fault it met."""
        timeout_s = self._pool.timeout_s
        deadline = time.monotonic() + timeout_s
        works = make_work_items(ranker, plan.good[0], self._max_batch_tokens, deadline, request_id=request_id)
        for work in works:
            self._batcher.put(work, "")
        try:
            _, late = await asyncio.wait([work.answer for work in works], timeout=timeout_s)
        finally:
            self._batcher.give_up(works)
        if late:
            raise DeadlineExceeded(f"not scored within {timeout_s:g} s")
        return works

    async def _in_thread(self, job: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job, *arguments)

    def _failed(self, request_id: str, fault: Exception) -> None:
        self._metrics.shadow_lists.labels("failed").inc()
        log.warning("the shadow failed", request_id=request_id, fault=repr(fault))


def is_chosen(request_id: str, list_id: str, share: float) -> bool:
    """Whether a list is of the share; the same lists of a request always are."""
    digest = blake2b(f"{request_id}\0{list_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64


def plan_of(ranker: ListRanker, each: Answered) -> Plan:
    """The list as a request to the shadow; raises where its weights do not fit that bundle."""
    weights = weights_of(ranker, each.request)
    nbest = list_from_proto(each.request.lists[each.place])
    return Plan(ranker, weights, (ranker.prepare(nbest, weights),))


def agreement_of(plan: Plan, works: Sequence[WorkItem], each: Answered) -> Agreement:
    """Of what the first bundle has answered and what the shadow would have."""
    outcome = ListOutcome(tuple(work.answer.result() for work in works))
    ranked = ranked_list(plan, plan.good[0], outcome, merge=each.request.merge)
    return agreement([hypothesis.original_rank - 1 for hypothesis in each.answer.hypotheses], ranked)


def agreement(first: Sequence[int], second: Ranking) -> Agreement:
    """Of two orders of one list.

    Args:
        first: places from best to worst, as of ``Ranking.order``.
    """
    best = second.order[0]
    return Agreement(first[0] in (best, *second.members[best]), pairs_alike(first, second.order))


def pairs_alike(first: Sequence[int], second: Sequence[int]) -> float:
    """As of ``Agreement``, of what is in both orders; 1 where there are no pairs.

    >>> pairs_alike([2, 0, 1], [0, 2, 1])
    0.6666666666666667
    """
    rank = {place: i for i, place in enumerate(second)}
    seen: list[int] = []
    swapped = 0
    for place in first:
        if place in rank:
            at = bisect(seen, rank[place])
            swapped += len(seen) - at
            seen.insert(at, rank[place])
    pairs = len(seen) * (len(seen) - 1) // 2
    return 1.0 - swapped / pairs if pairs else 1.0
