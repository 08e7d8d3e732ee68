"""Run large jobs in threads and small ones in the event loop, fairly to the clients for whom they are done.

Jobs build tries and convert messages. Handing one to a thread and back takes as long as processing a short
list, and threads compete for Python's global interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeVar

from rescorer.errors import Unavailable
from rescorer.runtime import pausing
from rescorer.service.engine.fair_queue import FairQueue, TwoLevelQueue
from rescorer.service.tracing import PhaseTiming, run_timed

Result = TypeVar("Result")

SMALL_TOKENS = 4096
"""Largest job that runs in the event loop, in tokens. It takes one to three milliseconds."""
SMALLER = 8
"""How many times as large a running job must be for another one to run beside it. So small jobs need not wait
for large ones, and the event loop seldom competes with more than one thread for the interpreter lock."""


@dataclass(eq=False, slots=True)
class LargeJob:
    """A job for a thread, and the future that receives its result and timings."""

    function: Callable[[], Any]
    tokens: int
    urgent: bool
    result: asyncio.Future[tuple[Any, list[PhaseTiming]]]

    def run(self) -> tuple[Any, list[PhaseTiming]]:
        with pausing(self._check):
            return run_timed(self.function)

    def _check(self) -> None:
        if self.result.done():
            raise Unavailable("the caller has gone")


class Turns:
    """Give the event loop's turns to those who wait for them, fairly to the clients.

    The loop serves what is ready in the order of arrival, so that a call that comes after fifty calls of
    another client would wait until each of them has been read, or answered. With turns it waits for one.
    """

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(lambda turn: turn.done())
        self._is_giving = False

    async def take(self, client: Hashable, cost: int = 1) -> None:
        """Wait for a turn: the caller goes on, and others do so when it has returned to the event loop.

        Args:
            cost: what the client's share is charged for the turn, in units of the caller's choice.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        leave_queue = self._waiting.put(turn, cost, client=client)
        if not self._is_giving:
            self._is_giving = True
            self._give(loop)
        try:
            await turn
        finally:
            leave_queue()

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give one turn now, and the next one when the loop has run what is ready."""
        turns = self._waiting.take(0)
        self._is_giving = bool(turns)
        for turn in turns:
            turn.set_result(None)
            # In an empty context: that of the first call would stay in memory while others wait.
            loop.call_soon(self._give, loop, context=Context())


class Offloader:
    """Run the jobs of calls and batches without blocking the event loop for long.

    A large job whose call was cancelled, or is past its deadline, ends at its next ``pause``.

    Large jobs wait in a fair queue, so that a client with many of them does not delay other clients' jobs.
    They run one by one, but urgent ones, and far smaller ones, beside another one.

    Args:
        threads: executor for large jobs.
        n_threads: largest number of large jobs that run at the same time.
        small_tokens: largest job that runs in the event loop, in tokens.
    """

    def __init__(self, threads: Executor, n_threads: int = 1, small_tokens: int = SMALL_TOKENS) -> None:
        self._threads, self._n_threads, self._small_tokens = threads, n_threads, small_tokens
        self._turns = Turns()
        self._running: set[LargeJob] = set()
        self._queue: TwoLevelQueue[LargeJob] = TwoLevelQueue(lambda job: job.result.done())

    async def run(
        self, job: Callable[[], Result], tokens: int, client: Hashable = "", *, urgent: bool = False
    ) -> tuple[Result, list[PhaseTiming]]:
        """Return the result of a job and its timings; exceptions of the job propagate.

        Args:
            tokens: number of tokens that the job processes.
            client: the client for whom the job is done.
            urgent: run the job before waiting jobs that are not urgent, for up to half of the time.
        """
        if tokens <= self._small_tokens:
            if not urgent:
                await self._turns.take(client, max(tokens, 1))
            return run_timed(job)
        large_job = LargeJob(job, tokens, urgent, asyncio.get_running_loop().create_future())
        size = 0 if urgent else tokens  # urgent jobs fit beside any other
        leave_queue = self._queue.put(large_job, tokens, client=client, size=size, urgent=urgent)
        self._start_jobs()
        try:
            return await large_job.result
        finally:
            leave_queue()  # if the call was cancelled: its request must not stay in memory

    def _start_jobs(self) -> None:
        """Start waiting jobs while they may run; those of cancelled calls are skipped."""
        while jobs := self._take():
            (job,) = jobs
            self._running.add(job)
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.run)
            running.add_done_callback(lambda done, job=job: self._finish(job, done))  # type: ignore[misc]

    def _take(self) -> list[LargeJob]:
        """Take the next job if it may run now."""
        if not self._running:
            return self._queue.take(-1)  # a single one, although urgent ones have no size
        if len(self._running) == self._n_threads:
            return []
        smallest = min(job.tokens for job in self._running)
        jobs = self._queue.take_early(smallest // SMALLER, lambda client, kind: True)
        if not jobs and not all(job.urgent for job in self._running):
            # It is the turn of a normal job, which does not fit; beside urgent ones, it would never start.
            jobs = self._queue.take_early_urgent(0, lambda client, kind: True)
        return jobs

    def _finish(self, job: LargeJob, done: asyncio.Future[tuple[Any, list[PhaseTiming]]]) -> None:
        self._running.discard(job)
        error = None if done.cancelled() else done.exception()  # asyncio logs one that is not asked for
        if job.result.done() or done.cancelled():  # the call was cancelled, or the server stops
            job.result.cancel()
        elif error is not None:
            job.result.set_exception(error)
        else:
            job.result.set_result(done.result())
        self._start_jobs()
