"""Owns the way of work through the scorers: waiting, batches, faults kept apart, and the answer to each.

There are twice as many lanes as scorers: while one lane's batch is scored, another's is made ready, and what
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
from rescorer.service.engine.offload import Jobs
from rescorer.service.engine.work_item import BatchScores, Part, Work, trie_of_works
from rescorer.service.observability.timings import QUEUE, Lap, laps_of
from rescorer.service.workers.pool import ScorerPool
from rescorer.service.workers.worker import Scorer
from rescorer.trie import HypothesisTrie

log = structlog.get_logger()


class Batcher:
    """Scores work in batches.

    Args:
        jobs: by which tries are built.
        max_batch_tokens: of one batch; a piece of work that has more is a batch of its own.
        wait_ms: how long a batch that is not full waits for company.
        done: told of each batch that was scored.
        failed: told of each that was not.
    """

    def __init__(
        self,
        pool: ScorerPool,
        jobs: Jobs,
        max_batch_tokens: int,
        wait_ms: float = 0.0,
        done: Callable[[Sequence[Work], BatchScores], None] = lambda works, batch: None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._jobs = jobs
        self._max_batch_tokens = max_batch_tokens
        self._wait_s = wait_ms / 1e3
        self._done, self._failed = done, failed
        self._queue: FairQueue[Work] = FairQueue(Work.is_over)
        self._arrival = asyncio.Event()
        self._lanes: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._lanes = [asyncio.create_task(self._lane()) for _ in range(2 * len(self._pool.scorers))]

    async def stop(self) -> None:
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """Pieces of work in the queue."""
        return len(self._queue)

    def put(self, work: Work, client: Hashable, *, urgent: bool = False) -> None:
        """Queues a piece of work; ``work.answer`` will have its part, or the fault it met."""
        self._queue.put(work, work.cost, client=client, kind=work.kind, urgent=urgent)
        self._arrival.set()

    def give_up(self, works: Sequence[Work]) -> None:
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
            await asyncio.sleep(0)  # the lane that has the scorer now takes first what has come for its batch

    async def _next(self) -> list[Work]:
        """The works of the next batch."""
        while True:
            while not len(self._queue):
                self._arrival.clear()
                await self._arrival.wait()
            if self._wait_s:
                await asyncio.sleep(self._wait_s)
            if works := self._queue.take(self._max_batch_tokens):  # none where all have died
                return works

    async def _serve(self, works: list[Work]) -> None:
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
                    self._pool.free() as scorer
                ):  # for all: in turn with others, each would wait its turn
                    while left and scorer.alive:
                        await self._alone(scorer, left.popleft())
            except Unavailable as none_left:
                while left:
                    left.popleft().fail(none_left)

    async def _together(self, works: list[Work]) -> Exception | None:
        """Answers the works that somebody still waits for; or says why that was not possible.

        They are joined by what has come by the time that a scorer is free: a list costs half as much again
        alone as among others, and its trie, made anew, next to nothing.
        """
        ready = [work for work in works if not work.is_over()]
        made = await self._trie(ready)
        try:
            async with self._pool.free() as scorer:
                still = [work for work in ready if not work.is_over()]
                company = self._company(still)
                works += company
                still += company
                if not still:
                    return None
                return await self._tried(scorer, still, made if still == ready else None)
        except Unavailable as fault:
            return fault

    async def _alone(self, scorer: Scorer, work: Work) -> None:
        if not work.is_over() and (fault := await self._tried(scorer, [work])) is not None:
            work.fail(fault)

    async def _tried(
        self, scorer: Scorer, works: list[Work], made: tuple[HypothesisTrie, list[Lap]] | None = None
    ) -> Exception | None:
        """Answers the works; or says why that was not possible, and ends the scorer where it is to blame.

        Args:
            made: their trie, where there is one already.
        """
        try:
            await self._score(scorer, works, *(made or await self._trie(works)))
        except Exception as fault:
            await self._pool.check(scorer, fault)
            return fault
        return None

    def _company(self, works: Sequence[Work]) -> list[Work]:
        """What waits and still fits into a batch of these."""
        if not works:
            return []
        return self._queue.more(works[0].kind, self._max_batch_tokens - sum(work.cost for work in works))

    async def _trie(self, works: list[Work]) -> tuple[HypothesisTrie, list[Lap]]:
        return await self._jobs.done(lambda: trie_of_works(works), sum(work.cost for work in works))

    async def _score(
        self, scorer: Scorer, works: Sequence[Work], trie: HypothesisTrie, laps: list[Lap]
    ) -> None:
        began = time.perf_counter()
        first = works[0]
        label, only = first.kind
        scored = await asyncio.wait_for(scorer.score(label, trie, only), self._pool.timeout_s)
        self._pool.worked()
        partial = np.array([each for work in works for each in work.partial], dtype=bool)
        laps = [*laps, *laps_of(scored.seconds, began)]
        batch = BatchScores(first.ranker, trie, scored.scores, partial, laps, scored.context_words)
        begin = 0
        for work in works:
            rows = slice(begin, begin + len(work.words))
            begin = rows.stop
            if not work.answer.done():
                queue = Lap(QUEUE, work.queued, began - work.queued)
                work.answer.set_result(Part(batch, rows, work.places, queue))
        self._done(works, batch)
