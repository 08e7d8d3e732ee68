"""Interface of a worker as the server sees it, and workers that are threads, processes or groups of these.

Whether a process is stopped, from Linux's ``/proc``.

What the kernel says does not depend on how busy the process or the machine is. An unanswered heartbeat does:
a process that computes, loads, or waits for a busy core would seem to be stopped.

Interface of a worker as the server sees it, and the workers that are processes.

Each worker holds all loaded bundles and scores one trie at a time.

A worker of several processes: a bundle that is loaded during service gets a process of its own.

Loading keeps a process busy: reading an ARPA file needs Python's global interpreter lock. So a process that
scores never loads, and a bundle that kills the process that loads it harms nobody.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from rescorer.errors import BundleError, ScoringError, Unavailable
from rescorer.models.language_model import EdgeScores
from rescorer.runtime import ContextWords
from rescorer.service.workers.frames import Arrays, Child, Frame, Peer, WorkerLost, pack_trie, unpack_scores
from rescorer.trie import HypothesisTrie

STOPPED = "T"


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; false if it has ended, or if this is not Linux."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == [STOPPED]


Result = TypeVar("Result")

PARTS = 10
"""Number of parts into which a time limit is divided."""


async def run_within(timeout_s: float, work: Coroutine[Any, Any, Result]) -> Result:
    """Await a result like ``asyncio.wait_for``, but hardly count the time in which the event loop is blocked.

    With ``workers = 0`` it may be blocked while a model is loaded, and so is the thread that scores. The time
    is waited for in parts, of which such a pause uses up one, however long it is.

    Raises:
        TimeoutError: If it takes longer than ``timeout_s``.
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


class WorkerScores(NamedTuple):
    """Edge scores of a trie, with the time and memory that scoring took."""

    scores: Mapping[str, EdgeScores]
    """Edge scores by name of the model."""
    seconds: Mapping[str, float]
    """Seconds by phase. Work of a GPU is counted in the phase that waits for it."""
    context_words: ContextWords
    device_bytes: Mapping[str, int]
    """Memory on a GPU in bytes, by kind; empty on a CPU."""


def load_timeout_error(label: str, timeout_s: float) -> BundleError:
    return BundleError(f"{label}: was not loaded within the {timeout_s:g} s of load_timeout_s")


def loader_died_error(folder: Path) -> BundleError:
    return BundleError(f"{folder}: the process that loaded it died; it may need too much memory")


def score_request(label: str, only: Sequence[str], encode: Sequence[str]) -> dict[str, Any]:
    """Return the header of a request to score a trie, which the frame holds."""
    return {"do": "score", "label": label, "only": list(only), "encode": list(encode)}


def parse_worker_scores(frame: Frame) -> WorkerScores:
    """Rebuild the scores from the reply to such a request."""
    header = frame.header
    context_words = ContextWords(**header["context_words"])
    return WorkerScores(unpack_scores(frame.arrays), header["seconds"], context_words, header["device_bytes"])


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
        """Whether a signal has stopped a process of the worker, which could be continued."""

    async def start(self) -> None:
        """Start or restart the worker; bundles that were lost are not loaded again."""

    async def load(self, label: str, folder: Path) -> None:
        """Load a bundle in a worker that is not in service."""

    async def load_beside(self, label: str, folder: Path) -> None:
        """Load a bundle in a worker that is in service."""

    async def unload(self, label: str) -> None: ...

    async def probe(self) -> None:
        """Raise an error if the worker's device no longer works."""

    async def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str] = ()
    ) -> WorkerScores:
        """Score a trie as ``ModelHost.score`` does."""

    async def stop(self) -> None:
        """Stop the worker, whatever it is doing; disconnect from a worker that others share."""

    async def terminate(self) -> None:
        """Stop a worker that hangs or fails, even if others share it."""


class RemoteWorker(ABC):
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

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    async def load(self, label: str, folder: Path) -> None:
        await self._load("load", label, folder)

    async def load_beside(self, label: str, folder: Path) -> None:
        await self._load("load_beside", label, folder)

    async def _load(self, operation: str, label: str, folder: Path) -> None:
        request = {"do": operation, "label": label, "folder": str(folder.resolve())}
        self._pid_by_label[label] = (await self._ask(request)).header["pid"]

    async def unload(self, label: str) -> None:
        self._pid_by_label.pop(label, None)
        await self._ask({"do": "unload", "label": label})

    async def probe(self) -> None:
        await self._ask({"do": "probe"})

    async def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str] = ()
    ) -> WorkerScores:
        request = score_request(label, only, encode)
        result = parse_worker_scores(await self._ask(request, pack_trie(trie)))
        self.device_bytes = result.device_bytes
        return result

    async def _ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> Frame:
        if self._peer is None:
            raise WorkerLost("a worker has died")
        return await self._peer.ask(header, arrays)


class MachineSettings(NamedTuple):
    """Where the models of a worker run, and with what."""

    device: str
    threads: int
    dtype: str
    """Precision of matrix products."""
    context_cache_bytes: int


class ProcessWorker(RemoteWorker):
    """A worker that is a child process, and can be restarted.

    Args:
        niceness: niceness of the process; higher values let other processes go first.
        listening: socket on which the process accepts further clients, who share the loaded bundles; None:
            the process serves its parent only.
        load_timeout_s: longest time that a bundle may take that is loaded while the process serves such
            clients.
    """

    def __init__(
        self,
        machine: MachineSettings,
        niceness: int = 0,
        listening: socket.socket | None = None,
        load_timeout_s: float = 600.0,
    ) -> None:
        super().__init__()
        self._descriptors = [] if listening is None else [listening.fileno()]
        shared = [*self._descriptors, load_timeout_s] if self._descriptors else []
        self._arguments = [*machine, *shared]
        self._niceness = niceness
        self._child: Child | None = None

    async def start(self) -> None:
        await self.stop()
        arguments = map(str, self._arguments)
        self._peer = self._child = await Child.spawn(
            "rescorer.service.workers", *arguments, pass_fds=self._descriptors
        )
        self.pid = self._child.pid
        with suppress(OSError):  # it has exited already; the next request raises WorkerLost
            os.setpriority(os.PRIO_PROCESS, self.pid, self._niceness)

    async def stop(self) -> None:
        child, self._peer, self._child = self._child, None, None
        self.pid, self._pid_by_label = 0, {}
        if child is not None:
            await child.kill()

    async def terminate(self) -> None:
        await self.stop()

    async def wait_until_exit(self) -> bool:
        """Wait until the process has exited; return whether it had scored for any client."""
        if self._child is None:
            return False
        await self._child.wait_closed()
        return self._child.has_worked


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
    """One worker for its users, who lend it as a whole; each bundle is in one of its processes.

    Args:
        create: creates a process, which is not started yet.
    """

    def __init__(self, create: Callable[[], Worker]) -> None:
        self._create = create
        self._members: list[Worker] = []
        self._loading: list[Worker] = []  # not members until they have loaded their bundle
        self._last_used: Worker | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(pid for member in (*self._members, *self._loading) for pid in member.pids)

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
        """Replace the processes that have died; the others keep their bundles."""
        dead = [member for member in self._members if not member.alive]
        self._members = [member for member in self._members if member.alive]
        await asyncio.gather(*(member.stop() for member in dead))
        if not self._members:
            member = self._create()
            self._members.append(member)
            await member.start()

    async def load(self, label: str, folder: Path) -> None:
        if not self._members:
            raise WorkerLost("a worker has died")
        await self._members[-1].load(label, folder)

    async def load_beside(self, label: str, folder: Path) -> None:
        """Load a bundle in a new process, while the others serve.

        Raises:
            BundleError: If the bundle cannot be used, or the process dies.
        """
        member = self._create()
        self._loading.append(member)
        try:
            await member.start()
            await member.load(label, folder)
        except WorkerLost:
            await member.stop()
            raise loader_died_error(folder) from None
        except BaseException:
            await member.stop()
            raise
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

    async def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str] = ()
    ) -> WorkerScores:
        members = self._members_with(label)
        if not members:
            raise Unavailable(f"{label} is not loaded")
        self._last_used = members[0]
        return await members[0].score(label, trie, only, encode)

    async def stop(self) -> None:
        members = (*self._members, *self._loading)
        self._members = []
        await asyncio.gather(*(member.stop() for member in members))

    async def terminate(self) -> None:
        """Stop the processes that are stopped by a signal, otherwise the one that was used last."""
        stopped = [member for member in self._members if member.is_stopped]
        for member in stopped or [self._last_used or self._members[0]]:
            await member.terminate()

    def _members_with(self, label: str) -> list[Worker]:
        return [member for member in self._members if label in member.labels]

    async def _stop_if_unused(self, member: Worker) -> None:
        """Stop a process without bundles, unless it is the only one."""
        if not member.labels and len(self._members) > 1 and member in self._members:
            self._members.remove(member)
            await member.stop()
