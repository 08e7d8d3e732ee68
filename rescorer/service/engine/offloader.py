"""Run large jobs in threads and small ones in the event loop, fairly to the clients for whom they are done.

Jobs build tries and convert messages. Handing one to a thread and back takes as long as processing a short
list, and threads compete for Python's global interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from rescorer.errors import Unavailable
from rescorer.runtime import pausing
from rescorer.service.engine.fair_queue import TwoLevelQueue
from rescorer.service.tracing import PhaseTiming, run_timed

Result = TypeVar("Result")

SMALL_TOKENS = 4096
"""Largest job that runs in the event loop, in tokens. It takes one to three milliseconds."""


@dataclass(eq=False, slots=True)
class LargeJob:
    """A job for a thread, and the future that receives its result and timings."""

    function: Callable[[], Any]
    result: asyncio.Future[tuple[Any, list[PhaseTiming]]]

    def run(self) -> tuple[Any, list[PhaseTiming]]:
        with pausing(self._check):
            return run_timed(self.function)

    def _check(self) -> None:
        if self.result.done():
            raise Unavailable("the caller has gone")


class Offloader:
    """Run the jobs of calls and batches without blocking the event loop for long.

    A large job whose call was cancelled, or is past its deadline, ends at its next ``pause``.

    Large jobs wait in a fair queue, so that a client with many of them does not delay other clients' jobs.

    Args:
        threads: executor for large jobs.
        n_threads: number of large jobs that run at the same time.
        small_tokens: largest job that runs in the event loop, in tokens.
    """

    def __init__(self, threads: Executor, n_threads: int = 1, small_tokens: int = SMALL_TOKENS) -> None:
        self._threads, self._n_idle, self._small_tokens = threads, n_threads, small_tokens
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
            return run_timed(job)
        large_job = LargeJob(job, asyncio.get_running_loop().create_future())
        leave_queue = self._queue.put(large_job, tokens, client=client, urgent=urgent)
        self._start_jobs()
        try:
            return await large_job.result
        finally:
            leave_queue()  # if the call was cancelled: its request must not stay in memory

    def _start_jobs(self) -> None:
        """Start waiting jobs while threads are idle; those of cancelled calls are skipped."""
        while self._n_idle and (jobs := self._queue.take(0)):
            (job,) = jobs
            self._n_idle -= 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.run)
            running.add_done_callback(lambda done, job=job: self._finish(job, done))  # type: ignore[misc]

    def _finish(self, job: LargeJob, done: asyncio.Future[tuple[Any, list[PhaseTiming]]]) -> None:
        self._n_idle += 1
        error = None if done.cancelled() else done.exception()  # asyncio logs one that is not asked for
        if job.result.done() or done.cancelled():  # the call was cancelled, or the server stops
            job.result.cancel()
        elif error is not None:
            job.result.set_exception(error)
        else:
            job.result.set_result(done.result())
        self._start_jobs()
