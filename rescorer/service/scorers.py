"""Owns what the server knows of whoever scores: a thread of its own, or a process spoken to in frames.

Both hold all loaded bundles and score one trie at a time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rescorer import errors
from rescorer.errors import RescorerError, ScoringError, Unavailable
from rescorer.lm.context_words import ContextWords
from rescorer.pipeline import Rescorer
from rescorer.service.frames import PREFIX, Arrays, Frame, lengths, pack, scores_of, trie_arrays, unpack
from rescorer.service.model_host import Load, ModelHost, Scored
from rescorer.trie import HypothesisTrie

Result = TypeVar("Result")


class ScorerDied(Unavailable):
    """The scorer is gone or was given up; what it was asked may be asked of another."""


class Scorer(Protocol):
    """Scores tries. Raises ScorerDied where it is no longer alive."""

    pid: int
    """Of its process, 0 where that is this one or none."""
    device_bytes: Mapping[str, int]
    """Memory of its GPU after the last batch, as of ``Scored``."""

    @property
    def alive(self) -> bool: ...

    async def start(self) -> None:
        """Makes it alive, with no bundle loaded."""

    async def load(self, label: str, folder: Path) -> None: ...

    async def unload(self, label: str) -> None: ...

    async def probe(self) -> None:
        """Raises where its device no longer works."""

    async def score(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> Scored: ...

    async def stop(self) -> None:
        """Ends it, whatever it is doing."""


class ThreadScorer:
    """Scores in a thread of this process. It cannot be replaced: once stopped it stays so."""

    def __init__(self, device: str, threads: int, load: Load = Rescorer.load) -> None:
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

    async def score(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> Scored:
        scored = await self._run(self._thread, lambda: self._host.measured(label, trie, only))
        self.device_bytes = scored.device_bytes
        return scored

    async def stop(self) -> None:
        self._stopped = True
        for each in (self._thread, self._loading):
            each.shutdown(wait=False, cancel_futures=True)

    async def _run(self, thread: ThreadPoolExecutor, job: Callable[[], Result]) -> Result:
        if self._stopped:
            raise ScorerDied("the scoring thread has stopped")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, job)
        except asyncio.CancelledError:
            if self._stopped:  # before it was begun
                raise ScorerDied("the scoring thread has stopped") from None
            raise


class ProcessScorer:
    """Scores in a process of its own, spawned and never forked; it can be started again when it has died.

    Args:
        niceness: how far it lets other processes go before it.
    """

    def __init__(
        self, device: str, threads: int, dtype: str, context_cache_bytes: int, niceness: int = 0
    ) -> None:
        self._arguments = (device, str(threads), dtype, str(context_cache_bytes))
        self._niceness = niceness
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._number = 0
        self._alive = False
        self.pid = 0
        self.device_bytes: Mapping[str, int] = {}

    @property
    def alive(self) -> bool:
        return self._alive

    async def start(self) -> None:
        await self.stop()
        ours, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", "rescorer.service.scorer_main", str(theirs.fileno()))
            self._process = await asyncio.create_subprocess_exec(
                *command, *self._arguments, pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL
            )
        self.pid = self._process.pid
        with suppress(OSError):  # it is gone already, which whoever asks it will learn
            os.setpriority(os.PRIO_PROCESS, self.pid, self._niceness)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._alive = True
        self._reading = asyncio.create_task(self._read(reader))

    async def load(self, label: str, folder: Path) -> None:
        await self._ask({"do": "load", "label": label, "folder": str(folder.resolve())})

    async def unload(self, label: str) -> None:
        await self._ask({"do": "unload", "label": label})

    async def probe(self) -> None:
        await self._ask({"do": "probe"})

    async def score(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> Scored:
        header = {"do": "score", "label": label, "only": list(only)}
        frame = await self._ask(header, trie_arrays(trie))
        self.device_bytes = frame.header["device_bytes"]
        words = ContextWords(**frame.header["context_words"])
        return Scored(scores_of(frame.arrays), frame.header["seconds"], words, self.device_bytes)

    async def stop(self) -> None:
        self._alive = False
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        self._fail_waiting()
        self._process = self._writer = self._reading = None
        self.pid = 0

    async def _ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> Frame:
        if not self._alive or self._writer is None:
            raise ScorerDied("a scoring process has died")
        self._number += 1
        number = self._number  # others ask before this is answered
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(pack({**header, "id": number}, arrays))
            await self._writer.drain()
            frame = await answer
        except ConnectionError:
            raise ScorerDied("a scoring process has died") from None
        finally:
            self._waiting.pop(number, None)
        if "fault" in frame.header:
            raise fault_named(frame.header["fault"])(frame.header["message"])
        return frame

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head_bytes, body_bytes = lengths(await reader.readexactly(PREFIX.size))
                frame = unpack(await reader.readexactly(head_bytes), await reader.readexactly(body_bytes))
                answer = self._waiting.get(frame.header["id"])
                if answer is not None and not answer.done():
                    answer.set_result(frame)
        except (asyncio.IncompleteReadError, OSError, ValueError, KeyError):
            pass  # it is gone, or says what is no frame
        finally:
            self._alive = False
            self._fail_waiting()

    def _fail_waiting(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ScorerDied("a scoring process has died"))


def fault_named(name: str) -> type[RescorerError]:
    """The class of our tree of that name."""
    kind = getattr(errors, name, ScoringError)
    return kind if isinstance(kind, type) and issubclass(kind, RescorerError) else ScoringError
