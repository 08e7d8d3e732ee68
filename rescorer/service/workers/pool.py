"""Lend the workers of a server to batches, load bundles in all of them, and restart those that die."""

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
"""Maximum number of times that one worker may be lost without scoring a batch in between. After more losses,
the cause must be the device or the machine, not the requests. Many workers may die at once when memory runs
out, and recover, so losses are counted per worker."""
RESTART_DELAY_S = 0.2
"""Delay before the second restart in a row; it doubles with each further restart."""

log = structlog.get_logger()


class IdleWorkers:
    """Fair queue of idle workers; contains None when there will be no more workers.

    ``asyncio.Queue`` is not fair: a caller that arrives while a waiting one wakes up takes the item that the
    other was woken for. With that queue, batches waited for minutes under a steady load.
    """

    def __init__(self) -> None:
        self._free: deque[Worker | None] = deque()  # empty while any caller waits
        self._waiting: deque[asyncio.Future[Worker | None]] = deque()

    def __len__(self) -> int:
        return len(self._free)

    def put(self, worker: Worker | None) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._free.append(worker)

    async def get(self) -> Worker | None:
        if self._free:
            return self._free.popleft()
        waiter: asyncio.Future[Worker | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.put(waiter.result())
            raise


class WorkerPool:
    """Workers that all hold the same bundles.

    Args:
        on_broken: called with the reason when scoring is no longer possible.
        timeout_s: longest time that a worker may take for one batch before it is terminated; also how long a
            restarted worker keeps trying to load the bundles of the others.
        on_worker_lost: called whenever a worker died or was terminated.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        on_broken: Callable[[str], None],
        timeout_s: float = 60.0,
        on_worker_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.workers = tuple(workers)
        self._on_broken, self._on_worker_lost = on_broken, on_worker_lost
        self.timeout_s = timeout_s
        self._idle = IdleWorkers()
        self._loaded: dict[str, Path] = {}
        self._loading = asyncio.Lock()
        self._restarts: set[asyncio.Task[None]] = set()
        self._consecutive_losses: Counter[Worker] = Counter()

    @property
    def n_idle(self) -> int:
        return len(self._idle)

    async def start(self) -> None:
        async with self._loading:  # calls of ``load`` wait until all workers have started
            await asyncio.gather(*(worker.start() for worker in self.workers))
        for worker in self.workers:
            self._idle.put(worker)

    async def load(self, label: str, folder: Path) -> None:
        """Load a bundle in all workers; if one of them fails, unload it from all.

        Raises:
            BundleError, ConfigError, ScoringError: see ``ModelHost.load``.
        """
        async with self._loading:
            loads = [self._load_unless_lost(worker, label, folder) for worker in self.workers]
            errors = [error for error in await asyncio.gather(*loads, return_exceptions=True) if error]
            if errors:
                await self._unload(label)
                raise errors[0]
            self._loaded[label] = folder

    async def unload(self, label: str) -> None:
        """Free a bundle's memory; batches that still need the bundle raise Unavailable."""
        async with self._loading:
            await self._unload(label)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Worker]:
        """Wait for a worker, and lend it exclusively.

        Raises:
            Unavailable: If scoring is no longer possible.
        """
        while (worker := await self._idle.get()) is not None and not worker.alive:
            self._schedule_restart(worker)
        if worker is None:
            self._idle.put(None)
            raise Unavailable("scoring is no longer possible on this server")
        try:
            yield worker
        finally:
            if worker.alive:
                self._idle.put(worker)
            else:
                self._schedule_restart(worker)

    async def check(self, worker: Worker, error: Exception) -> None:
        """Terminate a worker after an error unless the batch caused it."""
        if isinstance(error, TimeoutError):
            log.error("terminating a worker that does not respond", after_s=self.timeout_s)
            await worker.terminate()
        elif not isinstance(error, WorkerLost):
            try:
                await asyncio.wait_for(worker.probe(), self.timeout_s)
            except Exception as probe_error:
                log.error("terminating a worker that no longer works", exc_info=probe_error)
                await worker.terminate()

    def record_success(self) -> None:
        """Reset the counts of consecutive losses after a scored batch."""
        self._consecutive_losses.clear()

    async def stop(self) -> None:
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*(worker.stop() for worker in self.workers), return_exceptions=True)

    async def _load_unless_lost(self, worker: Worker, label: str, folder: Path) -> None:
        # A worker that is dead or dies now loads the bundle when it is restarted.
        with contextlib.suppress(WorkerLost):
            await worker.load(label, folder)

    async def _unload(self, label: str) -> None:
        self._loaded.pop(label, None)
        await asyncio.gather(*(worker.unload(label) for worker in self.workers), return_exceptions=True)

    def _schedule_restart(self, worker: Worker) -> None:
        task = asyncio.create_task(self._restart(worker))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _restart(self, worker: Worker) -> None:
        while True:
            self._consecutive_losses[worker] += 1
            losses = self._consecutive_losses[worker]
            self._on_worker_lost()
            log.warning("a worker has died", consecutive_losses=losses)
            if losses > MAX_CONSECUTIVE_LOSSES:
                self._fail(f"a worker died {losses} times in a row")
                return
            if losses > 1:
                await asyncio.sleep(RESTART_DELAY_S * 2 ** (losses - 2))
            try:
                await worker.start()
                await self._load_all(worker)
            except WorkerLost:
                continue
            except (RescorerError, OSError) as error:
                self._fail(str(error))
                return
            self._idle.put(worker)
            return

    async def _load_all(self, worker: Worker) -> None:
        """Load the bundles that the other workers have loaded.

        Retries until the time limit, because a bundle that is missing on disk may be about to be unloaded.
        """
        deadline, loaded = time.monotonic() + self.timeout_s, set()
        while True:
            try:
                async with self._loading:
                    for label in [label for label in self._loaded if label not in loaded]:
                        await worker.load(label, self._loaded[label])
                        loaded.add(label)
                    return
            except ModelError as error:
                if time.monotonic() > deadline:
                    raise
                log.warning("a restarted worker cannot load a bundle yet, retrying", error=str(error))
            await asyncio.sleep(RESTART_DELAY_S)

    def _fail(self, reason: str) -> None:
        self._idle.put(None)
        self._on_broken(reason)
