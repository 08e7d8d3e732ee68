"""A worker that scores in a thread of the server itself: least memory, but calls wait for Python's lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rescorer.errors import ScoringError
from rescorer.service.workers.ipc import WorkerLost
from rescorer.service.workers.model_host import LoadScorer, ModelHost
from rescorer.service.workers.worker import WorkerScores
from rescorer.trie import HypothesisTrie
from rescorer.trie_scorer import TrieScorer

Result = TypeVar("Result")


class ThreadWorker:
    """Scores in a thread of this process. It cannot be replaced: once stopped it stays so."""

    def __init__(self, device: str, threads: int, load: LoadScorer = TrieScorer.load) -> None:
        self._host = ModelHost(device, threads, load)
        self._thread = ThreadPoolExecutor(1, "scoring")
        self._loading = ThreadPoolExecutor(1, "loading")
        self._stopped = False
        self.pid = 0
        self.device_bytes: Mapping[str, int] = {}

    @property
    def alive(self) -> bool:
        return not self._stopped

    async def start(self) -> None:
        if self._stopped:
            raise ScoringError("the scoring thread of a process cannot be replaced")

    async def load(self, label: str, folder: Path) -> None:
        await self._run(self._loading, lambda: self._host.load(label, folder))

    async def unload(self, label: str) -> None:
        await self._run(self._thread, lambda: self._host.unload(label))

    async def probe(self) -> None:
        await self._run(self._thread, self._host.probe)

    async def score(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> WorkerScores:
        scored = await self._run(self._thread, lambda: self._host.measured(label, trie, only))
        self.device_bytes = scored.device_bytes
        return scored

    async def stop(self) -> None:
        self._stopped = True
        for each in (self._thread, self._loading):
            each.shutdown(wait=False, cancel_futures=True)

    async def give_up(self) -> None:
        await self.stop()

    async def _run(self, thread: ThreadPoolExecutor, job: Callable[[], Result]) -> Result:
        if self._stopped:
            raise WorkerLost("the scoring thread has stopped")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, job)
        except asyncio.CancelledError:
            if self._stopped:  # before it was begun
                raise WorkerLost("the scoring thread has stopped") from None
            raise
