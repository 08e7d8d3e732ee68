"""Owns the workers of a server: which of them is free, what they have loaded, and replacing one that died."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from rescorer.errors import ModelError, RescorerError, Unavailable
from rescorer.service.workers.ipc import WorkerLost
from rescorer.service.workers.worker import Worker

MAX_CONSECUTIVE_LOSSES = 5
"""Of one worker, without a batch scored between them: then it is not the requests but the device, or the
machine. Many may die at once, for want of memory, and come back."""
RESTART_DELAY_S = 0.2
"""Before the second attempt in a row; it doubles with each."""

log = structlog.get_logger()


class Idle:
    """Scorers that are free, or None where there will be none any more: first come, first served.

    An ``asyncio.Queue`` is not fair: whoever comes while the one who has waited wakes up takes what that was
    woken for, and under a steady load a batch so waited for minutes.
    """

    def __init__(self) -> None:
        self._free: deque[Worker | None] = deque()  # empty where anybody waits
        self._waiting: deque[asyncio.Future[Worker | None]] = deque()

    def __len__(self) -> int:
        return len(self._free)

    def put(self, worker: Worker | None) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(worker)
                return
        self._free.append(worker)

    async def get(self) -> Worker | None:
        if self._free:
            return self._free.popleft()
        handed: asyncio.Future[Worker | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(handed)
        try:
            return await handed
        except asyncio.CancelledError:
            if handed.done() and not handed.cancelled():
                self.put(handed.result())
            raise


class WorkerPool:
    """Scorers that all hold the same bundles.

    Args:
        broken: called once with the reason when scoring is no longer possible.
        timeout_s: a worker that takes longer than this over one batch is given up; so long, too, a new one
            tries to load what the others have.
        died: called for each worker that died or was given up.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        broken: Callable[[str], None],
        timeout_s: float = 60.0,
        died: Callable[[], None] = lambda: None,
    ) -> None:
        self.workers = tuple(workers)
        self._broken, self._died = broken, died
        self.timeout_s = timeout_s
        self._idle = Idle()
        self._loaded: dict[str, Path] = {}
        self._loading = asyncio.Lock()
        self._reviving: set[asyncio.Task[None]] = set()
        self._deaths: Counter[Worker] = Counter()

    @property
    def n_idle(self) -> int:
        return len(self._idle)

    async def start(self) -> None:
        async with self._loading:  # who is told to load meanwhile waits for them
            await asyncio.gather(*(each.start() for each in self.workers))
        for each in self.workers:
            self._idle.put(each)

    async def load(self, label: str, folder: Path) -> None:
        """Loads a bundle everywhere, or nowhere. Raises as ``ModelHost.load``."""
        async with self._loading:
            loads = [self._loaded_by(each, label, folder) for each in self.workers]
            faults = [each for each in await asyncio.gather(*loads, return_exceptions=True) if each]
            if faults:
                await self._unload(label)
                raise faults[0]
            self._loaded[label] = folder

    async def unload(self, label: str) -> None:
        """Frees a bundle's memory; batches that still ask for it are told that it is not loaded."""
        async with self._loading:
            await self._unload(label)

    @asynccontextmanager
    async def free(self) -> AsyncIterator[Worker]:
        """A worker for nobody else meanwhile; waits for one. Raises Unavailable if there is to be none."""
        while (worker := await self._idle.get()) is not None and not worker.alive:
            self._revive(worker)
        if worker is None:
            self._idle.put(None)
            raise Unavailable("scoring is no longer possible here")
        try:
            yield worker
        finally:
            if worker.alive:
                self._idle.put(worker)
            else:
                self._revive(worker)

    async def check(self, worker: Worker, fault: Exception) -> None:
        """After a fault: ends the worker where that was not the batch's doing."""
        if isinstance(fault, TimeoutError):
            log.error("a worker is given up", after_s=self.timeout_s)
            await worker.give_up()
        elif not isinstance(fault, WorkerLost):
            try:
                await asyncio.wait_for(worker.probe(), self.timeout_s)
            except Exception as of_device:
                log.error("a worker is broken", exc_info=of_device)
                await worker.give_up()

    def worked(self) -> None:
        """A batch was scored."""
        self._deaths.clear()

    async def stop(self) -> None:
        for task in self._reviving:
            task.cancel()
        await asyncio.gather(*(each.stop() for each in self.workers), return_exceptions=True)

    async def _loaded_by(self, worker: Worker, label: str, folder: Path) -> None:
        # One that is dead or dies meanwhile gets the bundle when it comes back.
        with contextlib.suppress(WorkerLost):
            await worker.load(label, folder)

    async def _unload(self, label: str) -> None:
        self._loaded.pop(label, None)
        await asyncio.gather(*(each.unload(label) for each in self.workers), return_exceptions=True)

    def _revive(self, worker: Worker) -> None:
        task = asyncio.create_task(self._revived(worker))
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    async def _revived(self, worker: Worker) -> None:
        while True:
            self._deaths[worker] += 1
            deaths = self._deaths[worker]
            self._died()
            log.warning("a worker has died", deaths_in_a_row=deaths)
            if deaths > MAX_CONSECUTIVE_LOSSES:
                self._give_up(f"a worker died {deaths} times in a row")
                return
            if deaths > 1:
                await asyncio.sleep(RESTART_DELAY_S * 2 ** (deaths - 2))
            try:
                await worker.start()
                await self._load_all(worker)
            except WorkerLost:
                continue
            except (RescorerError, OSError) as fault:
                self._give_up(str(fault))
                return
            self._idle.put(worker)
            return

    async def _load_all(self, worker: Worker) -> None:
        """Loads what the others have. A bundle that is no longer on disk may only be about to be unloaded."""
        until, done = time.monotonic() + self.timeout_s, set()
        while True:
            try:
                async with self._loading:
                    for label in [each for each in self._loaded if each not in done]:
                        await worker.load(label, self._loaded[label])
                        done.add(label)
                    return
            except ModelError as fault:
                if time.monotonic() > until:
                    raise
                log.warning("a new worker cannot have a model yet", fault=str(fault))
            await asyncio.sleep(RESTART_DELAY_S)

    def _give_up(self, reason: str) -> None:
        self._idle.put(None)
        self._broken(reason)
