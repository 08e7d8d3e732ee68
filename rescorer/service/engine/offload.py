"""Owns where messages become words, tries and answers: what is small at once, in the event loop; what is
large in threads beside it.

The way to a thread and back takes as long as a short list does, and two threads take turns at Python's lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from rescorer.service.observability.timings import PhaseTiming, run_timed

Result = TypeVar("Result")

SMALL_TOKENS = 4096
"""Largest job that runs in the event loop: it takes one to three milliseconds, which others can wait."""


class Offloader:
    """Does what a call or a batch needs done.

    Args:
        threads: for what is large.
        small_tokens: words that are not many yet.
    """

    def __init__(self, threads: Executor, small_tokens: int = SMALL_TOKENS) -> None:
        self._threads = threads
        self._small_tokens = small_tokens

    async def run(self, job: Callable[[], Result], tokens: int) -> tuple[Result, list[PhaseTiming]]:
        """What a job gives, and its timings; raises what the job does.

        Args:
            tokens: words that it has to do with.
        """
        if tokens <= self._small_tokens:
            return run_timed(job)
        return await asyncio.get_running_loop().run_in_executor(self._threads, run_timed, job)
