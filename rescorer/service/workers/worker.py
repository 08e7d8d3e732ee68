"""Owns what the server knows of whoever scores: a thread of its own, or a process spoken to in frames.

Each holds all loaded bundles and scores one trie at a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rescorer.errors import ScoringError
from rescorer.lm.base import EdgeScores
from rescorer.lm.context_stats import ContextWords
from rescorer.service.workers.ipc import Arrays, Child, Frame, Peer, WorkerLost, scores_of, trie_arrays
from rescorer.trie import HypothesisTrie


class WorkerScores(NamedTuple):
    """A model's edge scores by name, and what they took."""

    scores: Mapping[str, EdgeScores]
    seconds: Mapping[str, float]
    """By phase. A GPU's work is counted where it is waited for."""
    context_words: ContextWords
    device_bytes: Mapping[str, int]
    """Memory of a GPU, by kind; empty on a CPU."""


class Worker(Protocol):
    """Scores tries. Raises WorkerLost where it is no longer alive."""

    pid: int
    """Of its process, 0 where that is this one or none."""
    device_bytes: Mapping[str, int]
    """Memory of its GPU after the last batch, as of ``WorkerScores``."""

    @property
    def alive(self) -> bool: ...

    async def start(self) -> None:
        """Makes it alive, with no bundle loaded."""

    async def load(self, label: str, folder: Path) -> None: ...

    async def unload(self, label: str) -> None: ...

    async def probe(self) -> None:
        """Raises where its device no longer works."""

    async def score(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> WorkerScores: ...

    async def stop(self) -> None:
        """Ends it, whatever it is doing; or leaves it to the others that it scores for."""

    async def give_up(self) -> None:
        """Ends it for all, as it does not answer or gives faults."""


class RemoteWorker(ABC):
    """Scores in another process."""

    def __init__(self) -> None:
        self._peer: Peer | None = None
        self.pid = 0
        self.device_bytes: Mapping[str, int] = {}

    @property
    def alive(self) -> bool:
        return self._peer is not None and self._peer.alive

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    async def load(self, label: str, folder: Path) -> None:
        await self._ask({"do": "load", "label": label, "folder": str(folder.resolve())})

    async def unload(self, label: str) -> None:
        await self._ask({"do": "unload", "label": label})

    async def probe(self) -> None:
        await self._ask({"do": "probe"})

    async def score(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> WorkerScores:
        header = {"do": "score", "label": label, "only": list(only)}
        frame = await self._ask(header, trie_arrays(trie))
        self.device_bytes = frame.header["device_bytes"]
        words = ContextWords(**frame.header["context_words"])
        return WorkerScores(scores_of(frame.arrays), frame.header["seconds"], words, self.device_bytes)

    async def _ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> Frame:
        if self._peer is None:
            raise WorkerLost("a scoring process has died")
        return await self._peer.ask(header, arrays)


class ProcessWorker(RemoteWorker):
    """Scores in a process of our own; it can be started again when it has died.

    Args:
        niceness: how far it lets other processes go before it.
        listening: a socket on which the process lets others ask, too; they have the bundles together.
    """

    def __init__(
        self,
        device: str,
        threads: int,
        dtype: str,
        context_cache_bytes: int,
        niceness: int = 0,
        listening: socket.socket | None = None,
    ) -> None:
        super().__init__()
        self._descriptors = [] if listening is None else [listening.fileno()]
        self._arguments = [device, threads, dtype, context_cache_bytes, *self._descriptors]
        self._niceness = niceness
        self._child: Child | None = None

    async def start(self) -> None:
        await self.stop()
        arguments = map(str, self._arguments)
        self._peer = self._child = await Child.spawn(
            "rescorer.service.workers", *arguments, pass_fds=self._descriptors
        )
        self.pid = self._child.pid
        with suppress(OSError):  # it is gone already, which whoever asks it will learn
            os.setpriority(os.PRIO_PROCESS, self.pid, self._niceness)

    async def stop(self) -> None:
        child, self._peer, self._child = self._child, None, None
        if child is not None:
            await child.kill()
        self.pid = 0

    async def give_up(self) -> None:
        await self.stop()

    async def ended(self) -> bool:
        """Waits until the process is gone; whether it has scored for anybody who shares it."""
        if self._child is None:
            return False
        await self._child.ended()
        return self._child.works


class SharedWorker(RemoteWorker):
    """Scores in a process that others ask, too, and that somebody else starts again when it has died.

    Args:
        path: of the socket where it is found, which outlives it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def start(self) -> None:
        """Waits for the one that comes, where there is none."""
        await self.stop()
        while not self.pid:
            try:
                self._peer = Peer(*await asyncio.open_unix_connection(self._path))
                self.pid = (await self._ask({"do": "greet"})).header["pid"]
            except WorkerLost:  # before it has seen us
                await self.stop()
            except OSError as fault:
                raise ScoringError(f"no worker can be reached at {self._path}: {fault.strerror}") from None

    async def stop(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer, self.pid = None, 0

    async def give_up(self) -> None:
        if self.alive and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await self.stop()
