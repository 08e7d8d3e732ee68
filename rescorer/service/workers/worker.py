"""Interface of a worker as the server sees it, and the workers that are processes.

Each worker holds all loaded bundles and scores one trie at a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rescorer.errors import BundleError, ScoringError
from rescorer.lm.base import EdgeScores
from rescorer.lm.contexts.context_stats import ContextWords
from rescorer.service.workers.ipc import Arrays, Child, Frame, Peer, WorkerLost
from rescorer.service.workers.process_state import is_stopped
from rescorer.service.workers.trie_arrays import pack_trie, unpack_scores
from rescorer.trie import HypothesisTrie


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
