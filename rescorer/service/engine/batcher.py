"""Collect waiting work items into batches and have the workers score them.

There are twice as many lanes (tasks that each serve one batch at a time) as workers: while the batch of one
lane is being scored, another lane prepares the next one, and items that arrive meanwhile join it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import structlog

from rescorer.errors import ScoringError, Unavailable
from rescorer.scoring.batch import Batch, ScoreRequest
from rescorer.service.engine.fair_queue import Work
from rescorer.service.engine.offload import Offloader
from rescorer.service.engine.two_level_queue import TwoLevelQueue
from rescorer.service.engine.work_item import ItemScores, ScoredBatch, WorkItem
from rescorer.service.observability.timings import QUEUE, PhaseTiming, timings_from_seconds
from rescorer.service.workers.pool import WorkerPool
from rescorer.service.workers.time_limit import run_within
from rescorer.service.workers.worker import Worker, WorkerScores

LANES_PER_WORKER = 2

log = structlog.get_logger()


class StartedBatch(NamedTuple):
    """A batch whose trie has been built."""

    batch: Batch
    request: ScoreRequest
    """What has to be scored first."""
    timings: list[PhaseTiming]


class Batcher:
    """Score work items in batches.

    Args:
        offloader: builds the tries.
        max_batch_tokens: largest batch, in tokens; an item that has more is a batch of its own.
        wait_ms: how long a batch waits for more items before it is taken from the queue.
        on_scored: called for each batch that was scored.
        on_failed: called for each batch that failed.
    """

    def __init__(
        self,
        pool: WorkerPool,
        offloader: Offloader,
        max_batch_tokens: int,
        wait_ms: float = 0.0,
        on_scored: Callable[[Sequence[WorkItem], ScoredBatch], None] = lambda items, batch: None,
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._offloader = offloader
        self._max_batch_tokens = max_batch_tokens
        self._wait_s = wait_ms / 1e3
        self._on_scored, self._on_failed = on_scored, on_failed
        self._queue: TwoLevelQueue[WorkItem] = TwoLevelQueue(WorkItem.is_finished)
        self._cost_in_batches = 0
        self._arrival = asyncio.Event()
        self._lanes: list[asyncio.Task[None]] = []

    def start(self) -> None:
        n_lanes = LANES_PER_WORKER * len(self._pool.workers)
        self._lanes = [asyncio.create_task(self._run_lane()) for _ in range(n_lanes)]

    async def stop(self) -> None:
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)

    @property
    def n_waiting(self) -> int:
        """Number of items in the queue."""
        return len(self._queue)

    def put(self, item: WorkItem, client: Hashable, *, urgent: bool = False) -> None:
        """Queue an item; ``item.future`` will receive its scores or an error."""
        item.leave_queue = self._queue.put(item, item.cost, client=client, kind=item.kind, urgent=urgent)
        self._arrival.set()

    def cancel(self, items: Sequence[WorkItem]) -> None:
        """Cancel the items that are not finished."""
        for item in items:
            if not item.future.done():
                item.future.cancel()
                item.leave_queue()

    def cost_before(
        self, client: Hashable, work: Work, expected: Mapping[Hashable, Work] | None = None
    ) -> float:
        """Predict the cost of what is scored before the last of some new items; see ``FairQueue``."""
        return self._cost_in_batches + self._queue.cost_before(client, work, expected)

    async def _run_lane(self) -> None:
        while True:
            items = await self._next_batch()
            try:
                await self._serve(items)
            except Exception as error:  # if the lane ended, later items would wait for ever
                log.error("a batch failed", exc_info=error)
                for item in items:
                    item.fail(ScoringError("a batch failed unexpectedly"))
            finally:
                self._cost_in_batches -= sum(item.cost for item in items)
            # Let the lane that now has the worker fill up its batch first.
            await asyncio.sleep(0)

    async def _next_batch(self) -> list[WorkItem]:
        """Wait for items and take those of the next batch."""
        while True:
            while not len(self._queue):
                self._arrival.clear()
                await self._arrival.wait()
            if self._wait_s:
                await asyncio.sleep(self._wait_s)
            if items := self._queue.take(self._max_batch_tokens):  # empty if all were finished
                self._cost_in_batches += sum(item.cost for item in items)
                return items

    async def _serve(self, items: list[WorkItem]) -> None:
        """Score a batch, including items that join it; if that fails, score each item individually, once."""
        error = await self._score_batch(items)
        if error is None:
            return
        self._on_failed()
        log.warning(
            "a batch failed; its lists are scored one by one",
            lists=len(items),
            requests=sorted({item.request_id for item in items}),
            error=str(error),
            exc_info=None if isinstance(error, Unavailable) else error,
        )
        remaining = deque(items)
        while remaining:
            try:
                # Keep the worker for all items: otherwise each of them would wait for its turn.
                async with self._pool.acquire() as worker:
                    while remaining and worker.alive:
                        await self._score_alone(worker, remaining.popleft())
            except Unavailable as no_worker:
                while remaining:
                    remaining.popleft().fail(no_worker)

    async def _score_batch(self, items: list[WorkItem]) -> Exception | None:
        """Score the unfinished items, and return the error if that fails.

        Compatible items that arrived before a worker was free join the batch and are appended to ``items``: a
        list costs about 1.5 times as much alone as in a batch, and rebuilding the trie costs very little.
        """
        unfinished = [item for item in items if not item.is_finished()]
        started = await self._start(unfinished)
        try:
            async with self._pool.acquire() as worker:
                batch = [item for item in unfinished if not item.is_finished()]
                joining = self._take_compatible(batch)
                items += joining
                batch += joining
                if not batch:
                    return None
                return await self._try_to_score(worker, batch, started if batch == unfinished else None)
        except Unavailable as error:
            return error

    async def _score_alone(self, worker: Worker, item: WorkItem) -> None:
        if not item.is_finished() and (error := await self._try_to_score(worker, [item])) is not None:
            item.fail(error)

    async def _try_to_score(
        self, worker: Worker, items: list[WorkItem], started: StartedBatch | None = None
    ) -> Exception | None:
        """Score items; if that fails, return the error, and stop the worker if the worker caused it.

        Args:
            started: the batch of the items; None: start one.
        """
        try:
            await self._score(worker, items, started or await self._start(items))
        except Exception as error:
            await self._pool.check(worker, error)
            return error
        return None

    def _take_compatible(self, items: Sequence[WorkItem]) -> list[WorkItem]:
        """Take waiting items that fit into a batch with these."""
        if not items:
            return []
        budget = self._max_batch_tokens - sum(item.cost for item in items)
        joining = self._queue.take_more(items[0].kind, budget)
        self._cost_in_batches += sum(item.cost for item in joining)
        return joining

    async def _start(self, items: Sequence[WorkItem]) -> StartedBatch:
        """Build the trie of a batch."""
        batch = Batch([item.part for item in items], items[0].models if items else ())
        # Urgent, because a worker would wait.
        cost = sum(item.cost for item in items)
        request, timings = await self._offloader.run(batch.advance, cost, urgent=True)
        assert request is not None  # every batch has a trie
        return StartedBatch(batch, request, timings)

    async def _score(self, worker: Worker, items: Sequence[WorkItem], started: StartedBatch) -> None:
        """Have a worker score what a batch asks for, and give each item its part of the scores."""
        began_at = time.perf_counter()
        batch, label = started.batch, items[0].label
        try:
            first = await self._ask(worker, label, started.request)
            self._pool.record_success()
            request = await self._advance(batch, first)
            while request is not None:
                request = await self._advance(batch, await self._ask(worker, label, request))
        finally:
            batch.close()
        timings = [*started.timings, *timings_from_seconds(first.seconds, began_at)]
        scored = ScoredBatch(batch, timings, first.context_words)
        for index, item in enumerate(items):
            if not item.future.done():
                queue = PhaseTiming(QUEUE, item.queued_at, began_at - item.queued_at)
                item.future.set_result(ItemScores(batch.part(index), scored, queue))
        self._on_scored(items, scored)

    async def _ask(self, worker: Worker, label: str, request: ScoreRequest) -> WorkerScores:
        encode = sorted(request.encoders)
        asked = worker.score(label, request.trie, request.models, encode)
        return await run_within(self._pool.timeout_s, asked)

    async def _advance(self, batch: Batch, scored: WorkerScores) -> ScoreRequest | None:
        """Add scores to a batch, and build what has to be scored next."""
        advance = functools.partial(batch.advance, scored.scores)
        request, _ = await self._offloader.run(advance, batch.tokens_asked, urgent=True)
        return request
