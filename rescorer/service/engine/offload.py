"""Run conversion and trie jobs: small ones directly in the event loop, large ones in threads.

Handing a job to a thread and back takes as long as processing a short list, and threads compete for Python's
global interpreter lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from rescorer.service.observability.timings import PhaseTiming, run_timed

Result = TypeVar("Result")

SMALL_TOKENS = 4096
"""Largest job that runs in the event loop, in tokens. It takes one to three milliseconds."""


class Offloader:
    """Run the jobs of calls and batches without blocking the event loop for long.

    Args:
        threads: executor for large jobs.
        small_tokens: largest job that runs in the event loop, in tokens.
    """

    def __init__(self, threads: Executor, small_tokens: int = SMALL_TOKENS) -> None:
        self._threads = threads
        self._small_tokens = small_tokens

    async def run(self, job: Callable[[], Result], tokens: int) -> tuple[Result, list[PhaseTiming]]:
        """Return the result of a job and its timings; exceptions of the job propagate.

        Args:
            tokens: number of tokens that the job processes.
        """
        if tokens <= self._small_tokens:
            return run_timed(job)
        return await asyncio.get_running_loop().run_in_executor(self._threads, run_timed, job)
