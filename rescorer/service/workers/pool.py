"""Lend a server's workers to batches, load bundles in all of them, and replace those that die or hang."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from rescorer.errors import ModelError, RescorerError, Unavailable
from rescorer.service.workers.frames import WorkerLost
from rescorer.service.workers.worker import Worker, load_timeout_error, run_within


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

    def remove(self, worker: Worker) -> bool:
        """Remove a worker; return whether it was there."""
        if worker not in self._free:
            return False
        self._free.remove(worker)
        return True

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


MAX_CONSECUTIVE_LOSSES = 5
"""Maximum number of times that one worker may be lost soon after its start, without scoring a batch in
between. After more losses, the cause must be the device or the machine, not the requests. Many workers may
die at once when memory runs out, and recover, so losses are counted per worker."""
STABLE_AFTER_S = 10.0
"""When a worker or front end dies after it has run for this long, the count of consecutive losses starts
again."""
RESTART_DELAY_S = 0.2
"""Delay before the second restart in a row; it doubles with each further restart."""
RELOAD_DELAY_S = 1.0
"""Delay before a restarted worker tries again to load a bundle that it could not load."""
WATCH_INTERVAL_S = 0.5
"""Interval between looks at the workers' processes."""
MAX_STOPPED_S = 5.0
"""How long a worker may be stopped by a signal before it is replaced. Somebody may stop and continue a whole
server, whose processes do not continue at the same instant."""

Load = Callable[[str, Path], Coroutine[Any, Any, None]]
"""Loads a bundle by its label and folder."""

log = structlog.get_logger()


async def accept_any(label: str) -> None:
    """Accept every bundle."""


class WorkerPool:
    """Workers that all hold the same bundles.

    Args:
        on_broken: called with the reason when scoring is no longer possible.
        timeout_s: longest time that a worker may take for one batch before it is terminated.
        load_timeout_s: longest time that a worker may take to load one bundle.
        on_worker_lost: called whenever a worker died or was terminated.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        on_broken: Callable[[str], None],
        timeout_s: float = 60.0,
        load_timeout_s: float = 600.0,
        on_worker_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.workers = tuple(workers)
        self._on_broken, self._on_worker_lost = on_broken, on_worker_lost
        self.timeout_s, self._load_timeout_s = timeout_s, load_timeout_s
        self._idle = IdleWorkers()
        self._is_open = False
        self._in_service: dict[Worker, float] = {}
        """Workers that can be lent or are, with the time at which they were ready."""
        self._stopped_since: dict[Worker, float] = {}
        self._set_aside: set[Worker] = set()  # stopped while they were idle
        self._some_in_service = asyncio.Event()
        self._loaded: dict[str, Path] = {}
        self._loading = asyncio.Lock()
        self.verify: Callable[[str], Awaitable[None]] = accept_any
        """Raises BundleError if a bundle on disk is no longer the one that the other workers have loaded."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._consecutive_losses: Counter[Worker] = Counter()

    @property
    def n_idle(self) -> int:
        return len(self._idle)

    @property
    def n_alive(self) -> int:
        """Number of workers that can score: they have loaded their bundles, and are not stopped."""
        return sum(worker.alive and worker not in self._stopped_since for worker in self._in_service)

    async def start(self) -> None:
        """Start the workers. They are not lent until ``open``, so that bundles can be loaded first."""
        await asyncio.gather(*(worker.start() for worker in self.workers))
        self._run_in_background(self._watch_processes())

    def open(self) -> None:
        """Begin to lend the workers."""
        self._is_open = True
        for worker in self.workers:
            self._put_in_service(worker)

    async def load(self, label: str, folder: Path) -> None:
        """Load a bundle in all workers, one after the other if they are in service; if one of them fails,
        unload it from all. Workers that are being restarted follow.

        Raises:
            BundleError, ConfigError, ScoringError: see ``ModelHost.load``.
        """
        async with self._loading:
            try:
                if self._is_open:
                    await self._load_beside_service(label, folder)
                else:
                    await asyncio.gather(
                        *(self._load_first(worker, label, folder) for worker in self.workers)
                    )
            except Exception:
                await self._unload(label)
                raise
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
            self._release(worker)
        if worker is None:
            self._idle.put(None)
            raise Unavailable("scoring is no longer possible on this server")
        try:
            yield worker
        finally:
            self._release(worker)

    async def check(self, worker: Worker, error: Exception) -> None:
        """Terminate a worker after an error unless the batch caused it."""
        if isinstance(error, TimeoutError):
            log.error("terminating a worker that does not respond", after_s=self.timeout_s)
            await worker.terminate()
        elif not isinstance(error, WorkerLost):
            try:
                await run_within(self.timeout_s, worker.probe())
            except Exception as probe_error:
                log.error("terminating a worker that no longer works", exc_info=probe_error)
                await worker.terminate()

    def record_success(self) -> None:
        """Reset the counts of consecutive losses after a scored batch."""
        self._consecutive_losses.clear()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(worker.stop() for worker in self.workers), return_exceptions=True)

    async def _load_first(self, worker: Worker, label: str, folder: Path) -> None:
        try:
            await self._load_in_time(worker.load(label, folder), label)
        except WorkerLost:
            log.warning("a worker died while it loaded a bundle", model=label)  # it is restarted later

    async def _load_beside_service(self, label: str, folder: Path) -> None:
        """Load a bundle in the workers in service, one by one, until none of them lacks it."""
        await self._some_in_service.wait()  # otherwise nobody would find out whether the bundle can be used
        while lacking := [worker for worker in self._in_service if label not in worker.labels]:
            await self._load_in_time(lacking[0].load_beside(label, folder), label)

    async def _load_in_time(self, loading: Coroutine[Any, Any, None], label: str) -> None:
        try:
            await asyncio.wait_for(loading, self._load_timeout_s)
        except TimeoutError:
            raise load_timeout_error(label, self._load_timeout_s) from None

    async def _unload(self, label: str) -> None:
        self._loaded.pop(label, None)
        await asyncio.gather(*(worker.unload(label) for worker in self.workers), return_exceptions=True)

    async def _watch_processes(self) -> None:
        """Notice workers that have died or are stopped, also while nobody uses them."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            for worker in self.workers:
                await self._look_at(worker)

    async def _look_at(self, worker: Worker) -> None:
        now = time.monotonic()
        if not worker.is_stopped:
            self._stopped_since.pop(worker, None)
        elif worker not in self._stopped_since:
            self._stopped_since[worker] = now
            log.error("a worker is stopped by a signal", pids=worker.pids)
        elif now - self._stopped_since[worker] > MAX_STOPPED_S:
            log.error("terminating a worker that is stopped", after_s=MAX_STOPPED_S)
            await worker.terminate()
        is_free = worker in self._set_aside or (
            (not worker.alive or worker in self._stopped_since) and self._idle.remove(worker)
        )
        if is_free:
            self._set_aside.discard(worker)
            self._release(worker)

    def _put_in_service(self, worker: Worker) -> None:
        self._in_service[worker] = time.monotonic()
        self._some_in_service.set()
        self._release(worker)

    def _release(self, worker: Worker) -> None:
        """Pass on a worker that is not lent any longer."""
        if not worker.alive:
            ready_at = self._in_service.pop(worker, 0.0)
            if time.monotonic() - ready_at > STABLE_AFTER_S:
                del self._consecutive_losses[worker]
            if not self._in_service:
                self._some_in_service.clear()
            self._run_in_background(self._restart(worker))
        elif worker in self._stopped_since:
            self._set_aside.add(worker)
        else:
            self._idle.put(worker)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
                return
            except WorkerLost:
                continue
            except (RescorerError, OSError) as error:
                self._fail(str(error))
                return

    async def _load_all(self, worker: Worker) -> None:
        """Load the bundles that the other workers have, and put the worker in service.

        A bundle that cannot be loaded, because it is missing on disk, is tried again until it is loaded or
        unloaded. If no other worker is in service, the worker meanwhile serves the bundles that it has.
        """
        reported: set[str] = set()
        while lacking := self._find_lacking(worker):
            await self._try_to_load(worker.load, lacking, reported)
            if not worker.alive:
                raise WorkerLost("a worker has died")
            if reported and worker.labels and not self.n_alive:
                self._run_in_background(self._complete(worker, reported))
                break
            if reported:
                await asyncio.sleep(RELOAD_DELAY_S)
        self._put_in_service(worker)

    async def _complete(self, worker: Worker, reported: set[str]) -> None:
        """Load what a worker in service still lacks."""
        while worker in self._in_service and self._find_lacking(worker):
            await asyncio.sleep(RELOAD_DELAY_S)
            async with self._loading:
                await self._try_to_load(worker.load_beside, self._find_lacking(worker), reported)

    async def _try_to_load(
        self,
        load: Load,
        labels: Sequence[str],
        reported: set[str],
    ) -> None:
        """Load bundles, and log those that cannot be loaded unless they have been reported."""
        for label in labels:
            folder = self._loaded.get(label)
            if folder is None:  # unloaded in the meantime
                continue
            try:
                await self.verify(label)
                await self._load_in_time(load(label, folder), label)
            except ModelError as error:
                if label not in reported:
                    log.error("a restarted worker cannot load a bundle", model=label, reason=str(error))
                reported.add(label)

    def _find_lacking(self, worker: Worker) -> list[str]:
        return [label for label in self._loaded if label not in worker.labels]

    def _fail(self, reason: str) -> None:
        self._idle.put(None)
        self._on_broken(reason)
