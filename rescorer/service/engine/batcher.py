"""Owns the way of work through the workers: waiting, batches, faults kept apart, and the answer to each.

There are twice as many lanes as workers: while one lane's batch is scored, another's is made ready, and what
comes meanwhile joins it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import structlog

from rescorer.errors import ScoringError, Unavailable
from rescorer.service.engine.fair_queue import FairQueue
from rescorer.service.engine.offload import Offloader
from rescorer.service.engine.work_item import BatchScores, ItemScores, WorkItem, build_batch_trie
from rescorer.service.observability.timings import QUEUE, PhaseTiming, timings_from_seconds
from rescorer.service.workers.pool import WorkerPool
from rescorer.service.workers.worker import Worker
from rescorer.trie import HypothesisTrie

log = structlog.get_logger()


class Batcher:
    """Scores work in batches.

    Args:
        offloader: by which tries are built.
        max_batch_tokens: of one batch; a piece of work that has more is a batch of its own.
        wait_ms: how long a batch that is not full waits for company.
        done: told of each batch that was scored.
        failed: told of each that was not.
    """

    def __init__(
        self,
        pool: WorkerPool,
        offloader: Offloader,
        max_batch_tokens: int,
        wait_ms: float = 0.0,
        done: Callable[[Sequence[WorkItem], BatchScores], None] = lambda works, batch: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._offloader = offloader
        self._max_batch_tokens = max_batch_tokens
        self._wait_s = wait_ms / 1e3
        self._done, self._failed = done, failed
        self._queue: FairQueue[WorkItem] = FairQueue(WorkItem.is_over)
        self._arrival = asyncio.Event()
        self._lanes: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._lanes = [asyncio.create_task(self._lane()) for _ in range(2 * len(self._pool.workers))]

    async def stop(self) -> None:
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """Pieces of work in the queue."""
        return len(self._queue)

    def put(self, work: WorkItem, client: Hashable, *, urgent: bool = False) -> None:
        """Queues a piece of work; ``work.answer`` will have its part, or the fault it met."""
        self._queue.put(work, work.cost, client=client, kind=work.kind, urgent=urgent)
        self._arrival.set()

    def give_up(self, works: Sequence[WorkItem]) -> None:
        """Nobody waits for these any more."""
        for work in works:
            if not work.answer.done():
                work.answer.cancel()
                self._queue.give_up()

    async def _lane(self) -> None:
        while True:
            works = await self._next()
            try:
                await self._serve(works)
            except Exception as bug:  # a lane that ended would leave all who come later waiting
                log.error("a batch failed", exc_info=bug)
                for work in works:
                    work.fail(ScoringError(f"{type(bug).__name__}: {bug}"))
            await asyncio.sleep(0)  # the lane that has the worker now takes first what has come for its batch

    async def _next(self) -> list[WorkItem]:
        """The works of the next batch."""
        while True:
            while not len(self._queue):
                self._arrival.clear()
                await self._arrival.wait()
            if self._wait_s:
                await asyncio.sleep(self._wait_s)
            if works := self._queue.take(self._max_batch_tokens):  # none where all have died
                return works

    async def _serve(self, works: list[WorkItem]) -> None:
        """Scores a batch, and what it has taken along; where that fails, each of its works alone, once."""
        fault = await self._together(works)
        if fault is None:
            return
        self._failed()
        log.warning(
            "a batch failed; its lists are tried alone",
            lists=len(works),
            requests=sorted({work.request_id for work in works}),
            fault=repr(fault),
        )
        left = deque(works)
        while left:
            try:
                async with (
                    self._pool.acquire() as worker
                ):  # for all: in turn with others, each would wait its turn
                    while left and worker.alive:
                        await self._alone(worker, left.popleft())
            except Unavailable as none_left:
                while left:
                    left.popleft().fail(none_left)

    async def _together(self, works: list[WorkItem]) -> Exception | None:
        """Answers the works that somebody still waits for; or says why that was not possible.

        They are joined by what has come by the time that a worker is free: a list costs half as much again
        alone as among others, and its trie, made anew, next to nothing.
        """
        ready = [work for work in works if not work.is_over()]
        made = await self._trie(ready)
        try:
            async with self._pool.acquire() as worker:
                still = [work for work in ready if not work.is_over()]
                company = self._company(still)
                works += company
                still += company
                if not still:
                    return None
                return await self._tried(worker, still, made if still == ready else None)
        except Unavailable as fault:
            return fault

    async def _alone(self, worker: Worker, work: WorkItem) -> None:
        if not work.is_over() and (fault := await self._tried(worker, [work])) is not None:
            work.fail(fault)

    async def _tried(
        self,
        worker: Worker,
        works: list[WorkItem],
        made: tuple[HypothesisTrie, list[PhaseTiming]] | None = None,
    ) -> Exception | None:
        """Answers the works; or says why that was not possible, and ends the worker where it is to blame.

        Args:
            made: their trie, where there is one already.
        """
        try:
            await self._score(worker, works, *(made or await self._trie(works)))
        except Exception as fault:
            await self._pool.check(worker, fault)
            return fault
        return None

    def _company(self, works: Sequence[WorkItem]) -> list[WorkItem]:
        """What waits and still fits into a batch of these."""
        if not works:
            return []
        return self._queue.more(works[0].kind, self._max_batch_tokens - sum(work.cost for work in works))

    async def _trie(self, works: list[WorkItem]) -> tuple[HypothesisTrie, list[PhaseTiming]]:
        return await self._offloader.run(lambda: build_batch_trie(works), sum(work.cost for work in works))

    async def _score(
        self, worker: Worker, works: Sequence[WorkItem], trie: HypothesisTrie, timings: list[PhaseTiming]
    ) -> None:
        began = time.perf_counter()
        first = works[0]
        label, only = first.kind
        scored = await asyncio.wait_for(worker.score(label, trie, only), self._pool.timeout_s)
        self._pool.record_success()
        partial = np.array([each for work in works for each in work.partial], dtype=bool)
        timings = [*timings, *timings_from_seconds(scored.seconds, began)]
        batch = BatchScores(first.ranker, trie, scored.scores, partial, timings, scored.context_words)
        begin = 0
        for work in works:
            rows = slice(begin, begin + len(work.words))
            begin = rows.stop
            if not work.answer.done():
                queue = PhaseTiming(QUEUE, work.queued, began - work.queued)
                work.answer.set_result(ItemScores(batch, rows, work.places, queue))
        self._done(works, batch)
