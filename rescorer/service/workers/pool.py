"""The workers of a server: what each can do, and the pool that lends them to batches and replaces lost ones.

A worker holds all loaded bundles and scores one trie at a time. In a server with one front end, each worker
is a group of processes. Loading a bundle keeps a process busy, because reading an ARPA file needs Python's
global interpreter lock. So a bundle that is loaded during service gets a process for itself: a process that
scores never loads, and a bundle that kills the process that loads it harms no other.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections import Counter, deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from rescorer.errors import LoaderDied, ModelError, RescorerError, ScoringError, Unavailable
from rescorer.frames import Arrays, Frame, ScoreJob, WorkerScores
from rescorer.service.workers.peers import (
    Child,
    MachineSettings,
    Peer,
    WorkerLost,
    load_timeout_error,
    loader_died_error,
    spawn_worker,
)

log = structlog.get_logger()


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; false if the process has ended, or if this is not Linux.

    The kernel is asked rather than the process, because a process that computes, loads, or waits for a busy
    core would not answer in time either.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["T"]


Result = TypeVar("Result")

PARTS = 10
"""Number of parts into which ``run_within`` divides a time limit."""


async def run_within(timeout_s: float, work: Coroutine[Any, Any, Result]) -> Result:
    """Await a result like ``asyncio.wait_for``, but do not let a blocked event loop use up the time limit.

    With ``workers = 0``, loading a model may block the event loop, and the thread that scores as well. So the
    limit is divided into parts. A pause of the event loop ends the part in which it begins, however long the
    pause is, and the other parts remain.

    Raises:
        TimeoutError: the work takes longer than ``timeout_s``.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(PARTS):
            done, _ = await asyncio.wait((task,), timeout=timeout_s / PARTS)
            if done:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()


class Worker(Protocol):
    """Scores tries. ``load``, ``unload``, ``probe`` and ``score`` raise WorkerLost if it is not alive."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the worker's processes; empty: the worker is a thread, or is not running."""

    @property
    def device_bytes(self) -> Mapping[str, int]:
        """Memory on the worker's GPU after the last batch, in bytes by kind; empty on a CPU."""

    @property
    def labels(self) -> Collection[str]:
        """Labels of the bundles that the worker has loaded."""

    @property
    def alive(self) -> bool: ...

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped a process of the worker; another signal could continue it."""

    async def start(self) -> None:
        """Start or restart the worker; bundles that were lost are not loaded again."""

    async def load(self, label: str, folder: Path) -> None:
        """Load a bundle while the worker is not in service."""

    async def load_beside(self, label: str, folder: Path) -> None:
        """Load a bundle while the worker is in service."""

    async def unload(self, label: str) -> None: ...

    async def probe(self) -> None:
        """Raise an error if the worker's device no longer works."""

    async def score(self, job: ScoreJob) -> WorkerScores: ...

    async def stop(self) -> None:
        """Stop the worker, whatever it is doing; if others share the worker, only disconnect from it."""

    async def terminate(self) -> None:
        """Stop a worker that hangs or fails, even if others share it."""


class RemoteWorker:
    """A worker that is another process."""

    def __init__(self) -> None:
        self._peer: Peer | None = None
        self.pid = 0
        self.device_bytes: Mapping[str, int] = {}
        self._pid_by_label: dict[str, int] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        pids = dict.fromkeys((self.pid, *self._pid_by_label.values()))  # the worker's own first
        return tuple(pids) if self.pid else ()

    @property
    def labels(self) -> Collection[str]:
        return self._pid_by_label.keys()

    @property
    def alive(self) -> bool:
        return self._peer is not None and self._peer.alive

    @property
    def is_stopped(self) -> bool:
        return any(map(is_stopped, self.pids))

    async def load(self, label: str, folder: Path) -> None:
        await self._load("load", label, folder)

    async def load_beside(self, label: str, folder: Path) -> None:
        await self._load("load_beside", label, folder)

    async def unload(self, label: str) -> None:
        self._pid_by_label.pop(label, None)
        await self._ask({"do": "unload", "label": label})

    async def probe(self) -> None:
        await self._ask({"do": "probe"})

    async def score(self, job: ScoreJob) -> WorkerScores:
        result = WorkerScores.unpack(await self._ask(*job.pack()))
        self.device_bytes = result.device_bytes
        return result

    async def _load(self, operation: str, label: str, folder: Path) -> None:
        request = {"do": operation, "label": label, "folder": str(folder.resolve())}
        self._pid_by_label[label] = (await self._ask(request)).header["pid"]

    async def _ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> Frame:
        if self._peer is None:
            raise WorkerLost("a worker has died")
        return await self._peer.ask(header, arrays)


class ProcessWorker(RemoteWorker):
    """A worker that is a child process.

    Args:
        niceness: how much nicer the process is than this one; higher values let other processes go first.
    """

    def __init__(self, machine: MachineSettings, niceness: int = 0) -> None:
        super().__init__()
        self._machine, self._niceness = machine, niceness
        self._child: Child | None = None

    async def start(self) -> None:
        self._peer = self._child = await spawn_worker(self._machine, self._niceness)
        self.pid = self._child.pid

    async def start_with(self, label: str, folder: Path) -> None:
        """Start the process and load a bundle; if that fails, stop the process.

        Raises:
            BundleError: the bundle cannot be used, or the process dies.
        """
        try:
            await self.start()
            await self.load(label, folder)
        except BaseException as error:
            await self.stop()
            if isinstance(error, WorkerLost):
                raise loader_died_error(folder) from None
            raise

    async def wait_closed(self) -> None:
        """Wait until the process has died or was stopped."""
        if self._child is not None:
            await self._child.wait_closed()

    async def stop(self) -> None:
        child, self._peer, self._child = self._child, None, None
        self.pid, self._pid_by_label = 0, {}
        if child is not None:
            await child.kill()


class SharedWorker(RemoteWorker):
    """A worker process that several front ends share, and that the supervisor restarts.

    Args:
        path: path of the worker's socket, which stays when the process is replaced.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def start(self) -> None:
        """Connect to the worker; wait for its replacement if it is being restarted."""
        await self.stop()
        while not self.pid:
            try:
                self._peer = Peer(*await asyncio.open_unix_connection(self._path))
                self.pid = (await self._ask({"do": "greet"})).header["pid"]
            except WorkerLost:  # it died before it accepted the connection
                await self.stop()
            except OSError as error:
                raise ScoringError(
                    f"cannot connect to the worker at {self._path}: {error.strerror}"
                ) from None

    async def stop(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer, self.pid, self._pid_by_label = None, 0, {}

    async def terminate(self) -> None:
        for pid in self.pids if self.alive else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.stop()


class WorkerGroup:
    """A worker of one or more child processes, which is lent as a whole; each bundle is in one of them.

    Args:
        niceness: how much nicer the processes are than this one.
    """

    def __init__(self, machine: MachineSettings, niceness: int = 0) -> None:
        self._machine, self._niceness = machine, niceness
        self._members: list[ProcessWorker] = []
        self._loading: list[ProcessWorker] = []  # they load a bundle now; new ones are not members yet
        self._last_used: ProcessWorker | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        members = dict.fromkeys((*self._members, *self._loading))
        return tuple(pid for member in members for pid in member.pids)

    @property
    def device_bytes(self) -> Mapping[str, int]:
        reports = [member.device_bytes for member in self._members]
        return {kind: max(report.get(kind, 0) for report in reports) for report in reports for kind in report}

    @property
    def labels(self) -> set[str]:
        return set().union(*(member.labels for member in self._members))

    @property
    def alive(self) -> bool:
        return bool(self._members) and all(member.alive for member in self._members)

    @property
    def is_stopped(self) -> bool:
        return any(member.is_stopped for member in self._members)

    async def start(self) -> None:
        """Remove the processes that have died; the others keep their bundles. If none is left, start one."""
        dead = [member for member in self._members if not member.alive]
        self._members = [member for member in self._members if member.alive]
        await asyncio.gather(*(member.stop() for member in dead))
        if not self._members:
            member = ProcessWorker(self._machine, self._niceness)
            self._members.append(member)
            await member.start()

    async def load(self, label: str, folder: Path) -> None:
        if not self._members:
            raise WorkerLost("a worker has died")
        member = self._members[-1]
        self._loading.append(member)
        try:
            await member.load(label, folder)
        finally:
            self._loading.remove(member)

    async def load_beside(self, label: str, folder: Path) -> None:
        """Load a bundle in a new process, while the others serve; raises like ``start_with``."""
        member = ProcessWorker(self._machine, self._niceness)
        self._loading.append(member)
        try:
            await member.start_with(label, folder)
        finally:
            self._loading.remove(member)
        self._members.append(member)
        await self._stop_if_unused(self._members[0])

    async def unload(self, label: str) -> None:
        for member in self._members_with(label):
            await member.unload(label)
            await self._stop_if_unused(member)

    async def probe(self) -> None:
        for member in list(self._members):
            self._last_used = member
            await member.probe()

    async def score(self, job: ScoreJob) -> WorkerScores:
        members = self._members_with(job.label)
        if not members:
            raise Unavailable(f"{job.label} is not loaded")
        self._last_used = members[0]
        return await members[0].score(job)

    async def stop(self) -> None:
        members = (*self._members, *self._loading)
        self._members = []
        await asyncio.gather(*(member.stop() for member in members))

    async def terminate(self) -> None:
        """End the processes that a signal has stopped. If there are none, end the one that was used last."""
        stopped = [member for member in self._members if member.is_stopped]
        for member in stopped or [self._last_used or self._members[0]]:
            await member.stop()

    def _members_with(self, label: str) -> list[ProcessWorker]:
        return [member for member in self._members if label in member.labels]

    async def _stop_if_unused(self, member: ProcessWorker) -> None:
        """Stop a process without bundles, unless it is the only one, or is loading its first bundle."""
        is_used = member.labels or member in self._loading
        if not is_used and len(self._members) > 1 and member in self._members:
            self._members.remove(member)
            await member.stop()


class Loan(NamedTuple):
    """A worker that is lent to a batch."""

    worker: Worker | None
    """None: there will be no more workers."""
    is_busy: bool = False
    """Whether the worker is scoring a batch, which this one may overtake."""


class WorkerQueue:
    """Queue of workers to lend, first come, first served. It has None when there will be no more workers.

    Idle workers are for any batch, busy ones for a batch that may overtake, until one does.

    ``asyncio.Queue`` is not fair: a caller that arrives while another is being woken up for an item takes
    that item. With ``asyncio.Queue``, batches waited for minutes under a steady load.
    """

    def __init__(self) -> None:
        self._free: deque[Worker | None] = deque()  # empty while any caller waits
        self._busy: deque[Worker] = deque()
        self._waiting: deque[tuple[asyncio.Future[Loan], bool]] = deque()

    def __len__(self) -> int:
        return len(self._free)

    @property
    def n_busy(self) -> int:
        """Number of workers whose batch another one may overtake now."""
        return len(self._busy)

    def put(self, worker: Worker | None) -> None:
        if not self._lend(Loan(worker)):
            self._free.append(worker)

    def put_busy(self, worker: Worker) -> None:
        """Let a batch overtake the one that a worker is scoring."""
        if worker not in self._busy and not self._lend(Loan(worker, is_busy=True)):
            self._busy.append(worker)

    def remove(self, worker: Worker) -> bool:
        """Remove an idle worker; return whether it was there."""
        if worker not in self._free:
            return False
        self._free.remove(worker)
        return True

    def remove_busy(self, worker: Worker) -> None:
        """Let no batch overtake on this worker any more."""
        if worker in self._busy:
            self._busy.remove(worker)

    async def get(self, *, overtakes: bool = False) -> Loan:
        """Wait for a worker. For a batch that overtakes, the worker may be busy with another one."""
        if self._free:
            return Loan(self._free.popleft())
        if self._busy and overtakes:
            return Loan(self._busy.popleft(), is_busy=True)
        waiter: asyncio.Future[Loan] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, overtakes))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                worker, is_busy = waiter.result()
                if worker is not None and is_busy:
                    self.put_busy(worker)
                else:
                    self.put(worker)
            raise

    def _lend(self, loan: Loan) -> bool:
        """Lend a worker to the first caller that waits for such a worker; return whether there was one."""
        for entry in list(self._waiting):
            waiter, overtakes = entry
            if waiter.done():
                self._waiting.remove(entry)
            elif overtakes or not loan.is_busy:
                self._waiting.remove(entry)
                waiter.set_result(loan)
                return True
        return False


MAX_CONSECUTIVE_LOSSES = 5
"""Maximum number of times in a row that a worker may be lost soon after its start, without scoring a batch in
between. If it is lost more often, the device or the machine must be the cause, not the requests. Losses are
counted per worker, because many workers may die at once when memory runs out, and recover."""
STABLE_AFTER_S = 10.0
"""If a worker or front end has run for this long before it dies, the count of consecutive losses starts
again."""
RESTART_DELAY_S = 0.2
"""Delay before the second restart in a row; it doubles with each further restart."""
MAX_DEATHS_WHILE_LOADING = 3
"""A bundle is lost once this many processes in a row have died while they loaded it again."""
RELOAD_DELAY_S, MAX_RELOAD_DELAY_S = 1.0, 30.0
"""Delay before a restarted worker tries again to load a bundle that it could not load, and its longest delay.
It doubles with each attempt."""
WATCH_INTERVAL_S = 0.5
"""Interval between looks at the workers' processes."""
MAX_STOPPED_S = 5.0
"""Longest time for which a worker may be stopped by a signal before it is replaced. If somebody stops and
continues a whole server, its processes do not continue at the same instant."""


async def wait_to_restart(what: str, losses: int) -> None:
    """Log that a process has died, and wait before it is restarted.

    Args:
        losses: how many times in a row it has died.

    Raises:
        ScoringError: it has died too often.
    """
    log.warning(f"a {what} has died", consecutive_losses=losses)
    if losses > MAX_CONSECUTIVE_LOSSES:
        raise ScoringError(f"a {what} died {losses} times in a row")
    if losses > 1:
        await asyncio.sleep(RESTART_DELAY_S * 2 ** (losses - 2))


def reload_delays() -> Iterator[float]:
    """Yield how long to wait after each failure to load a bundle again, without end."""
    delay_s = RELOAD_DELAY_S
    while True:
        yield delay_s
        delay_s = min(2 * delay_s, MAX_RELOAD_DELAY_S)


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
        self._idle = WorkerQueue()
        self._overtakable: set[Worker] = set()  # busy with a batch that does not overtake
        self._is_open = False
        self._in_service: dict[Worker, float] = {}
        """Workers in service, lent or idle, each with the time at which it became ready."""
        self._stopped_since: dict[Worker, float] = {}
        self._set_aside: set[Worker] = set()  # stopped while they were idle
        self._some_in_service = asyncio.Event()
        self._loaded: dict[str, Path] = {}
        self._load_s: dict[str, float] = {}
        """Seconds that a worker took to load each bundle, when that was last done."""
        self._lost_at = -math.inf
        """When the last worker in service was lost, in ``time.monotonic`` seconds."""
        self._failures: dict[str, str] = {}
        """Why restarted workers could not load bundles again, by label."""
        self._deaths: Counter[str] = Counter()
        """How many processes in a row have died while they loaded a bundle again, by label. After the first,
        which was a worker, other processes load it."""
        self.on_lost: Callable[[str], None] = lambda label: None
        """Called when ``why_lost`` has a reason for a bundle."""
        self._loading = asyncio.Lock()
        self.verify: Callable[[str], Awaitable[None]] | None = None
        """Function that raises BundleError if a bundle on disk is no longer the one that the workers have."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._consecutive_losses: Counter[Worker] = Counter()

    @property
    def n_idle(self) -> int:
        return len(self._idle)

    @property
    def n_overtakable(self) -> int:
        """Number of workers whose batch another one may overtake now."""
        return self._idle.n_busy

    @property
    def n_alive(self) -> int:
        """Number of workers that can score: they have loaded bundles, and are not stopped."""
        return sum(
            worker.alive and worker not in self._stopped_since and bool(worker.labels or not self._loaded)
            for worker in self._in_service
        )

    @property
    def ready_in_s(self) -> float:
        """Estimated time until a worker can score, which has to load its bundles again; 0 if one can."""
        if self.n_alive:
            return 0.0
        elapsed_s = 0.0 if self._in_service else time.monotonic() - self._lost_at
        return max(0.0, sum(self._load_s.get(label, 0.0) for label in self._loaded) - elapsed_s)

    def why_lost(self, label: str) -> str:
        """Say why no worker in service has a bundle that workers have had; empty: one has it, or may soon."""
        if any(label in worker.labels for worker in self._in_service if worker.alive):
            return ""
        return self._failures.get(label, "")

    async def start(self) -> None:
        """Start the workers. They are not lent until ``open``, so that bundles can be loaded first."""
        await asyncio.gather(*(worker.start() for worker in self.workers))
        self._run_in_background(self._watch_processes())

    def open(self) -> None:
        """Begin to lend the workers to callers of ``acquire``."""
        self._is_open = True
        for worker in self.workers:
            self._put_in_service(worker)
            if worker.alive and self._find_lacking(worker):
                self._run_in_background(self._complete(worker, set()))

    async def load(self, label: str, folder: Path) -> None:
        """Load a bundle in all workers; if one of them fails, unload the bundle from all.

        Workers in service load one after the other. Workers that are being restarted load the bundle later.

        Raises:
            BundleError, ConfigError, ScoringError: see ``LoadedModels.load``.
        """
        async with self._loading:
            try:
                if not self._is_open:
                    await asyncio.gather(
                        *(self._load_first(worker, label, folder) for worker in self.workers)
                    )
                    if not any(label in worker.labels for worker in self.workers):
                        raise loader_died_error(folder)
                else:
                    # Without a worker in service it would not be known whether the bundle can be used.
                    await self._some_in_service.wait()
                    while lacking := [worker for worker in self._in_service if label not in worker.labels]:
                        await self._load_in_time(lacking[0].load_beside(label, folder), label)
            except Exception:
                await self._unload(label)
                raise
            self._loaded[label] = folder

    async def unload(self, label: str) -> None:
        """Free a bundle's memory; batches that still need the bundle raise Unavailable."""
        async with self._loading:
            await self._unload(label)

    @asynccontextmanager
    async def acquire(self, *, overtakes: bool = False) -> AsyncIterator[Worker]:
        """Wait for a worker, and lend it. One batch at a time may overtake another one on its worker.

        Args:
            overtakes: whether the worker may be busy with another batch.

        Raises:
            Unavailable: scoring is no longer possible.
        """
        while (
            loan := await self._idle.get(overtakes=overtakes)
        ).worker is not None and not loan.worker.alive:
            if not loan.is_busy:  # else the batch that is overtaken returns it
                self._release(loan.worker)
        worker = loan.worker
        if worker is None:
            self._idle.put(None)
            raise Unavailable("scoring is no longer possible on this server")
        if not overtakes:
            self._overtakable.add(worker)
            self._idle.put_busy(worker)
        try:
            yield worker
        finally:
            if not overtakes:
                self._overtakable.discard(worker)
                self._idle.remove_busy(worker)
            if not loan.is_busy:
                self._release(worker)
            elif worker in self._overtakable:
                self._idle.put_busy(worker)

    async def check(self, worker: Worker, error: Exception) -> None:
        """Terminate a worker whose batch failed with an error, unless the batch itself caused the error."""
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
            if not worker.alive:  # another bundle has killed it
                await worker.start()
                await self._try_to_load(worker, list(self._loaded), set())
            await self._load_in_time(worker.load(label, folder), label)
        except WorkerLost:
            log.warning("a worker died while it loaded a bundle", model=label)  # it is restarted later

    async def _load_in_time(self, loading: Coroutine[Any, Any, None], label: str) -> None:
        began_at = time.monotonic()
        try:
            await asyncio.wait_for(loading, self._load_timeout_s)
        except TimeoutError:
            raise load_timeout_error(label, self._load_timeout_s) from None
        self._load_s[label] = time.monotonic() - began_at

    async def _unload(self, label: str) -> None:
        for entries in (self._loaded, self._load_s, self._failures):
            entries.pop(label, None)
        del self._deaths[label]
        await asyncio.gather(*(worker.unload(label) for worker in self.workers), return_exceptions=True)

    async def _watch_processes(self) -> None:
        """Notice workers that have died or are stopped, also while they are idle."""
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
        """Restart a worker that was returned or is new, or set it aside, or let it serve."""
        if not worker.alive:
            ready_at = self._in_service.pop(worker, 0.0)
            if time.monotonic() - ready_at > STABLE_AFTER_S:
                del self._consecutive_losses[worker]
            if not self._in_service:
                self._some_in_service.clear()
                self._lost_at = time.monotonic()
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
            self._on_worker_lost()
            try:
                await wait_to_restart("worker", self._consecutive_losses[worker])
                await worker.start()
                await self._load_all(worker)
                return
            except WorkerLost:
                continue
            except (RescorerError, OSError) as error:
                self._fail(str(error))
                return

    async def _load_all(self, worker: Worker) -> None:
        """Load the bundles that the other workers have into a restarted worker, and put it in service.

        If a bundle cannot be loaded, because it is missing on disk, try again until it can be, or until the
        pool unloads it. Meanwhile the worker is not in service, unless no other worker is: then it serves the
        bundles that it has, and those that are loaded from now on. A bundle that has killed its worker comes
        last.
        """
        reported: set[str] = set()
        for delay_s in reload_delays():
            if not (lacking := self._find_lacking(worker)):
                break
            harmless = [label for label in lacking if not self._deaths[label]]
            await self._try_to_load(worker, harmless or lacking, reported)
            if not worker.alive:
                raise WorkerLost("a worker has died")
            if (worker.labels or reported) and not self.n_alive:
                break
            if reported:
                await asyncio.sleep(delay_s)
        for label in set(worker.labels) - self._loaded.keys():  # unloaded while this worker loaded them
            await worker.unload(label)
        self._put_in_service(worker)
        if self._find_lacking(worker):
            self._run_in_background(self._complete(worker, reported))

    async def _complete(self, worker: Worker, reported: set[str]) -> None:
        """Load the bundles that a worker in service still lacks."""
        for delay_s in reload_delays():
            if worker not in self._in_service or not self._find_lacking(worker):
                return
            await asyncio.sleep(delay_s)
            async with self._loading:
                await self._try_to_load(worker, self._find_lacking(worker), reported)

    async def _try_to_load(self, worker: Worker, labels: Sequence[str], reported: set[str]) -> None:
        """Load bundles. Log each failure whose label is not in ``reported``, and add the label to it.

        Raises:
            WorkerLost: the worker died.
        """
        for label in labels:
            folder = self._loaded.get(label)
            if folder is None:  # unloaded in the meantime
                continue
            try:
                if self.verify is not None:
                    await self.verify(label)
                is_beside = worker in self._in_service or self._deaths[label] > 0
                load = worker.load_beside if is_beside else worker.load
                await self._load_in_time(load(label, folder), label)
                self._failures.pop(label, None)
                self._deaths[label] = min(self._deaths[label], 1)
            except ModelError as error:
                if label not in reported:
                    log.error("a restarted worker cannot load a bundle", model=label, reason=str(error))
                reported.add(label)
                if isinstance(error, LoaderDied):
                    self._deaths[label] += 1
                    if self._deaths[label] < MAX_DEATHS_WHILE_LOADING:  # the cause may be another one
                        continue
                self._failures[label] = str(error)
                if self.why_lost(label):
                    self.on_lost(label)
            except WorkerLost:
                self._deaths[label] += 1
                raise

    def _find_lacking(self, worker: Worker) -> list[str]:
        return [label for label in self._loaded if label not in worker.labels]

    def _fail(self, reason: str) -> None:
        self._idle.put(None)
        self._on_broken(reason)
