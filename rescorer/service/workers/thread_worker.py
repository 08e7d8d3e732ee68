"""Score in a thread of the server itself, which needs the least memory, but calls wait for Python's lock."""

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
    """A worker that is a thread of this process. Once stopped, it cannot be started again."""

    def __init__(self, device: str, threads: int, load: LoadScorer = TrieScorer.load) -> None:
        self._host = ModelHost(device, threads, load)
        self._scoring = ThreadPoolExecutor(1, "scoring")
        self._loading = ThreadPoolExecutor(1, "loading")
        self._stopped = False
        self.pids: tuple[int, ...] = ()
        self.is_stopped = False
        self.device_bytes: Mapping[str, int] = {}
        self.labels: set[str] = set()

    @property
    def alive(self) -> bool:
        return not self._stopped

    async def start(self) -> None:
        if self._stopped:
            raise ScoringError("the scoring thread has stopped and cannot be restarted; restart the server")

    async def load(self, label: str, folder: Path) -> None:
        await self._run(self._loading, lambda: self._host.load(label, folder))
        self.labels.add(label)

    async def load_beside(self, label: str, folder: Path) -> None:
        await self.load(label, folder)

    async def unload(self, label: str) -> None:
        self.labels.discard(label)
        await self._run(self._scoring, lambda: self._host.unload(label))

    async def probe(self) -> None:
        await self._run(self._scoring, self._host.probe)

    async def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str] = ()
    ) -> WorkerScores:
        result = await self._run(
            self._scoring, lambda: self._host.score_and_measure(label, trie, only, encode)
        )
        self.device_bytes = result.device_bytes
        return result

    async def stop(self) -> None:
        self._stopped = True
        for executor in (self._scoring, self._loading):
            executor.shutdown(wait=False, cancel_futures=True)

    async def terminate(self) -> None:
        await self.stop()

    async def _run(self, executor: ThreadPoolExecutor, job: Callable[[], Result]) -> Result:
        if self._stopped:
            raise WorkerLost("the scoring thread has stopped")
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, job)
        except asyncio.CancelledError:
            if self._stopped:  # before the job was started
                raise WorkerLost("the scoring thread has stopped") from None
            raise
