"""Hold the models of a worker in memory, and answer the requests of one server or of several front ends.

    python -m rescorer.service.workers.host SOCKET MACHINE [LISTENING]

SOCKET and LISTENING are descriptors of inherited sockets, MACHINE is ``MachineSettings`` as JSON. A worker
process answers requests on the first socket until that is closed. With the listening socket, it serves
everyone who connects there, and uses the first socket only to report its first scored batch and to notice the
end of the server. The process ignores the signals that stop a server; it exits when the server closes the
first socket or is gone.

Front ends share the bundles of their worker. Bundles that are loaded before the first batch are in the worker
process itself. Later ones get a child process each, because loading keeps a process busy: reading an ARPA
file needs Python's global interpreter lock. So a process that serves front ends never loads, and a bundle
that kills the process that loads it harms no other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rescorer import frames
from rescorer.errors import BundleError, ScoringError, Unavailable
from rescorer.frames import Arrays, Frame, ScoreJob, WorkerScores
from rescorer.pipeline import TrieScorer
from rescorer.runtime import (
    ContextWords,
    Stopwatch,
    keep_freed_memory,
    pausing,
    release_freed_memory,
    use_threads,
)
from rescorer.service.logs import use_parents_stderr
from rescorer.service.tracing import seconds_of
from rescorer.service.workers.peers import (
    HAS_WORKED,
    MachineSettings,
    WorkerLost,
    abandoned_error,
    answer_requests,
    load_timeout_error,
)
from rescorer.service.workers.pool import ProcessWorker
from rescorer.signals import ignore_group_signals
from rescorer.trie import HypothesisTrie, build_trie

LoadScorer = Callable[..., TrieScorer]
"""Function that loads a bundle's models. It takes the arguments of ``TrieScorer.load``."""

Result = TypeVar("Result")

WARM_UP = build_trie([("warm", "up"), ()])
"""A tiny trie."""


def score_all(scorer: TrieScorer, trie: HypothesisTrie) -> None:
    """Score a trie with every model of a bundle, whatever texts the models read."""
    for surface in (False, True):
        if scorer.readers(surface=surface):
            scorer.score(trie, surface=surface)


class LoadedModels:
    """The models of several bundles in this process, on one device.

    Args:
        device: torch device, such as "cpu" or "cuda:0".
        threads: number of threads of the neural models; 0: the default of torch.
        load: loads a bundle's models.
    """

    def __init__(self, device: str, threads: int, load: LoadScorer = TrieScorer.load) -> None:
        self._device, self._threads = device, threads
        self._load = load
        self._scorers: dict[str, TrieScorer] = {}

    def load(self, label: str, folder: Path) -> int:
        """Load and warm the models of a bundle, and return the id of the process.

        Raises:
            BundleError: the bundle cannot be used.
            ConfigError: this machine does not have the device.
            ScoringError: the models give scores that are not finite.
        """
        use_threads(self._threads)
        try:
            scorer = self._load(folder, self._device)
        except Exception as error:
            if is_out_of_memory(error):
                raise BundleError(f"{folder}: needs more memory than there is on {self._device}") from None
            if not isinstance(error, OSError):
                raise
            reason = os.strerror(error.errno) if error.errno else "input/output error"  # the disk may recover
            raise BundleError(f"{folder}: cannot be read: {reason}") from None
        score_all(scorer, WARM_UP)
        self._scorers[label] = scorer
        release_freed_memory()
        return os.getpid()

    def unload(self, label: str) -> None:
        self._scorers.pop(label, None)
        release_freed_memory()

    def score(self, job: ScoreJob, on_pause: Callable[[], object] = lambda: None) -> WorkerScores:
        """Score the edges of a trie.

        Args:
            on_pause: called between the steps of scoring; if it raises an error, scoring ends with it.

        Raises:
            ScoringError: a score is not finite.
            Unavailable: the bundle is not loaded.
        """
        scorer = self._scorers.get(job.label)
        if scorer is None:
            raise Unavailable(f"{job.label} is not loaded")
        encoders = {name: scorer.encoders[name] for name in job.encoders}
        paused_s = 0.0

        def pause() -> None:
            nonlocal paused_s
            began_at = time.perf_counter()
            on_pause()
            paused_s += time.perf_counter() - began_at

        stopwatch = Stopwatch(lambda: time.perf_counter() - paused_s)  # what overtakes has its own
        context_words, device_bytes = ContextWords(), dict[str, int]()
        with stopwatch.running(), context_words.counting(), pausing(pause):
            scores = scorer.score(job.trie, job.models, encoders, surface=job.surface, words=job.words)
        if self._device != "cpu":
            from rescorer.models.kernels import memory_bytes

            device_bytes = memory_bytes(self._device)
        return WorkerScores(scores, seconds_of(stopwatch), context_words, device_bytes)

    def probe(self) -> None:
        """Check the device by scoring a tiny trie with every model; raises its error if it does not work."""
        for scorer in list(self._scorers.values()):
            score_all(scorer, WARM_UP)


@dataclass(eq=False, slots=True)
class Turn:
    """A job that waits to be scored or is being scored, and the future that receives its result."""

    job: ScoreJob
    result: concurrent.futures.Future[WorkerScores] = field(default_factory=concurrent.futures.Future)
    is_abandoned: bool = False


class ScoringThread:
    """The thread of a worker that scores: one trie at a time, but short ones between the steps of a long one.

    Whatever overtakes gets at most half of the time. So a long trie takes at most twice as long, however many
    short ones arrive, and a short one waits for a step and for as long as the previous short one took.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, models: LoadedModels, clock: Callable[[], float] = time.monotonic) -> None:
        self.thread = ThreadPoolExecutor(1, "scoring")
        self._models, self._clock = models, clock
        self._waiting: deque[Turn] = deque()
        self._next_pause = 0.0

    async def score(self, job: ScoreJob) -> WorkerScores:
        """Score a trie in the thread; raises like ``LoadedModels.score``.

        If this is cancelled, it ends as soon as the thread has ended a step.
        """
        turn = Turn(job)
        self._waiting.append(turn)
        self.thread.submit(self._take_turn)
        result = asyncio.wrap_future(turn.result)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            turn.is_abandoned = True
            await asyncio.wait((result,))  # else the next job would seem to be late
            if not result.cancelled():
                result.exception()  # asyncio logs those that are not retrieved
            raise

    def close(self) -> None:
        """Score nothing more; waiting jobs are cancelled."""
        self.thread.shutdown(wait=False, cancel_futures=True)
        for turn in list(self._waiting):
            turn.result.cancel()

    def _take_turn(self) -> None:
        """Score the next trie, unless it was scored between the steps of another one."""
        if self._waiting:
            self._score(self._waiting.popleft())

    def _pause(self, turn: Turn) -> None:
        """Act between two steps of scoring a trie."""
        if turn.is_abandoned:
            raise abandoned_error()
        if turn.job.overtakes or not self._waiting or (began := self._clock()) < self._next_pause:
            return
        for other in list(self._waiting):
            if other.job.overtakes:
                self._waiting.remove(other)
                self._score(other)
                self._next_pause = 2 * self._clock() - began
                return

    def _score(self, turn: Turn) -> None:
        if not turn.result.set_running_or_notify_cancel():
            return
        try:
            self._pause(turn)
            turn.result.set_result(self._models.score(turn.job, partial(self._pause, turn)))
        except BaseException as error:
            turn.result.set_exception(error)


NO_MEMORY = "can't allocate memory", "Cannot allocate memory", "failed to map segment"
"""What torch says if it gets no memory, the system if a file cannot be mapped, and the linker if a library
cannot be."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, torch on any device, or the system could not get memory."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or type(error).__name__ == "OutOfMemoryError"
        or any(text in str(error) for text in NO_MEMORY)
    )


class SharedModels:
    """The models of a worker, for one or more clients, whose requests are served in order of arrival.

    A client is a server, a front end, or any other object. A bundle is in memory once, and stays there while
    any client has it loaded. To be used in one event loop.

    Args:
        models: holds the bundles of this process.
        create_child: creates a process for a bundle that is loaded while this process is in service; None:
            this process loads all bundles.
        load_timeout_s: longest time that another process may take to load a bundle.
        on_first_score: called once, after the first scored trie.
    """

    def __init__(
        self,
        models: LoadedModels,
        create_child: Callable[[], ProcessWorker] | None = None,
        load_timeout_s: float = 600.0,
        on_first_score: Callable[[], object] = lambda: None,
    ) -> None:
        self._models, self._create_child, self._load_timeout_s = models, create_child, load_timeout_s
        self._on_first_score = on_first_score
        self._has_scored = False
        self._clients: dict[str, set[object]] = {}  # the clients that have a bundle loaded, by label
        self._children: dict[str, ProcessWorker] = {}
        self._pids: dict[str, int] = {}
        self._failures: dict[str, tuple[float, Exception]] = {}
        """Time and error of the latest failure to load a bundle, by label."""
        self._watching: set[asyncio.Task[None]] = set()
        self._changing, self._turn = asyncio.Lock(), asyncio.Lock()  # to change bundles; to use models
        self._loading, self._scoring = ThreadPoolExecutor(1, "loading"), ScoringThread(models)

    @property
    def labels(self) -> set[str]:
        """Labels of the bundles in memory."""
        return set(self._clients)

    async def load(self, client: object, label: str, folder: Path, *, beside: bool = False) -> int:
        """Load a bundle unless it is in memory, and return the id of the process that holds it.

        Args:
            beside: whether a client may need scores in the meantime, so that another process must load the
                bundle.

        Raises:
            BundleError, ConfigError, ScoringError: see ``LoadedModels.load``.
        """
        began_at = time.monotonic()
        try:
            async with asyncio.timeout(self._load_timeout_s):
                await self._changing.acquire()
        except TimeoutError:
            raise load_timeout_error(label, self._load_timeout_s) from None
        try:
            if label not in self._clients:
                in_child = beside or self._has_scored
                self._pids[label] = await self._load_first(label, folder, began_at, in_child)
            self._clients.setdefault(label, set()).add(client)
            return self._pids[label]
        finally:
            self._changing.release()

    async def unload(self, client: object, label: str) -> None:
        """Free the memory of a bundle unless another client has it loaded."""
        async with self._changing:
            clients = self._clients.get(label, set())
            clients.discard(client)
            if clients or self._clients.pop(label, None) is None:
                return
            async with self._turn:
                if child := self._children.pop(label, None):
                    await child.stop()
                else:
                    await run_in(self._scoring.thread, self._models.unload, label)

    async def unload_all(self, client: object) -> None:
        """Unload all bundles of a client."""
        for label in self.labels:
            await self.unload(client, label)

    async def score(self, job: ScoreJob) -> WorkerScores:
        """Score a trie as ``LoadedModels.score`` does. If this is cancelled, scoring ends after its step."""
        async with nullcontext() if job.overtakes else self._turn:
            child = self._children.get(job.label)
            result = await (child.score(job) if child else self._scoring.score(job))
        if not self._has_scored:
            self._has_scored = True
            self._on_first_score()
        return result

    async def probe(self) -> None:
        """Check the device by scoring a tiny trie with every model; raises its error if it does not work."""
        async with self._turn:
            await run_in(self._scoring.thread, self._models.probe)
            for child in self._children.values():
                await child.probe()

    def close(self) -> None:
        """Load and score nothing more; waiting jobs are cancelled."""
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._scoring.close()

    async def _load_first(self, label: str, folder: Path, began_at: float, in_child: bool) -> int:
        """Load a bundle that is not in memory; if that fails, it fails for all clients who waited for it."""
        failed_at, failure = self._failures.pop(label, (0.0, None))
        if failure is None or failed_at < began_at:
            try:
                if self._create_child is None or not in_child:
                    return await run_in(self._loading, self._models.load, label, folder)
                timeout_s = max(began_at + self._load_timeout_s - time.monotonic(), 0.001)
                return await self._load_in_child(self._create_child(), label, folder, timeout_s)
            except Exception as error:
                failed_at, failure = time.monotonic(), error
        self._failures[label] = failed_at, failure
        raise failure

    async def _load_in_child(self, child: ProcessWorker, label: str, folder: Path, timeout_s: float) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                await child.start_with(label, folder)
        except TimeoutError:
            raise load_timeout_error(label, self._load_timeout_s) from None
        self._children[label] = child

        async def watch() -> None:
            await child.wait_closed()
            if self._children.get(label) is child:  # it has died
                os._exit(1)  # the worker is replaced as a whole

        watching = asyncio.create_task(watch())
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return child.pid


async def run_in(threads: ThreadPoolExecutor, job: Callable[..., Result], *arguments: Any) -> Result:
    return await asyncio.get_running_loop().run_in_executor(threads, job, *arguments)


class ThreadWorker:
    """A worker that is a thread of this process. It cannot be started again after it was stopped."""

    def __init__(self, device: str, threads: int, load: LoadScorer = TrieScorer.load) -> None:
        self._models = SharedModels(LoadedModels(device, threads, load))
        self._stopped = False
        self._tasks: set[asyncio.Task[Any]] = set()
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
        await self._finish(lambda: self._begin(self._models.load(self, label, folder)))
        self.labels.add(label)

    async def load_beside(self, label: str, folder: Path) -> None:
        await self.load(label, folder)

    async def unload(self, label: str) -> None:
        if self._stopped:
            raise WorkerLost("the scoring thread has stopped")
        unloading = self._begin(self._models.unload(self, label))
        if label in self.labels:  # otherwise it was not loaded, or is still being loaded after the time limit
            self.labels.discard(label)
            await self._finish(lambda: unloading)

    async def probe(self) -> None:
        await self._finish(self._models.probe)

    async def score(self, job: ScoreJob) -> WorkerScores:
        result = await self._finish(lambda: self._models.score(job))
        self.device_bytes = result.device_bytes
        return result

    async def stop(self) -> None:
        self._stopped = True
        self._models.close()

    async def terminate(self) -> None:
        await self.stop()

    def _begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
        """Begin work that continues in its thread even if nobody waits for it any more."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def _finish(self, begin: Callable[[], Awaitable[Result]]) -> Result:
        if self._stopped:
            raise WorkerLost("the scoring thread has stopped")
        try:
            return await begin()
        except (asyncio.CancelledError, RuntimeError):
            if self._stopped:  # before the job was started
                raise WorkerLost("the scoring thread has stopped") from None
            raise


async def serve(models: SharedModels, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a client until it disconnects; then unload its bundles."""
    client = object()
    unanswered = await answer_requests(reader, writer, partial(perform, models, client))
    await asyncio.gather(*unanswered, return_exceptions=True)
    writer.close()
    await models.unload_all(client)


async def perform(models: SharedModels, client: object, frame: Frame) -> tuple[dict[str, Any], Arrays]:
    """Carry out a request, and return the header and the arrays of the reply."""
    header = frame.header
    match header["do"]:
        case "greet":
            return {"pid": os.getpid()}, {}
        case "load" | "load_beside" as operation:
            beside, folder = operation == "load_beside", Path(header["folder"])
            return {"pid": await models.load(client, header["label"], folder, beside=beside)}, {}
        case "unload":
            await models.unload(client, header["label"])
            return {}, {}
        case "probe":
            await models.probe()
            return {}, {}
        case frames.SCORE:
            return (await models.score(ScoreJob.unpack(frame))).pack()
    raise ValueError(f"unknown operation {header['do']!r}")


async def main(descriptor: int, machine: MachineSettings, listening: int | None = None) -> None:
    """Run a worker process; see the module."""
    ignore_group_signals()
    use_parents_stderr()
    keep_freed_memory()
    load = partial(TrieScorer.load, dtype=machine.dtype, context_cache_bytes=machine.context_cache_bytes)
    models = LoadedModels(machine.device, machine.threads, load)
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    if listening is None:
        await serve(SharedModels(models), reader, writer)
    else:
        shared = SharedModels(
            models,
            partial(ProcessWorker, machine),
            machine.load_timeout_s,
            lambda: writer.write(frames.pack({"id": HAS_WORKED})),
        )
        accepting = socket.socket(fileno=listening)
        await asyncio.start_unix_server(partial(serve, shared), sock=accepting, backlog=socket.SOMAXCONN)
        with suppress(ConnectionError):
            await reader.read(1)  # the server sends nothing: this returns when it closes the socket
    os._exit(0)  # without waiting for batches in progress


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), MachineSettings(**json.loads(sys.argv[2])), *map(int, sys.argv[3:])))
