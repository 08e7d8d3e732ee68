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
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rescorer.errors import BundleError, ScoringError, Unavailable
from rescorer.pipeline import TrieScorer
from rescorer.runtime import ContextWords, Stopwatch, keep_freed_memory, release_freed_memory, use_threads
from rescorer.service.logs import use_parents_stderr
from rescorer.service.tracing import seconds_of
from rescorer.service.workers import frames
from rescorer.service.workers.frames import (
    Arrays,
    Frame,
    MachineSettings,
    ScoreJob,
    WorkerLost,
    WorkerScores,
)
from rescorer.signals import ignore_group_signals
from rescorer.trie import build_trie

LoadScorer = Callable[..., TrieScorer]
"""Loads a bundle's models; takes the arguments of ``TrieScorer.load``."""

Result = TypeVar("Result")

WARM_UP = build_trie([("warm", "up"), ()])
"""A tiny trie."""


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
        except OSError as error:  # such as EIO; the disk may recover
            reason = os.strerror(error.errno) if error.errno else "input/output error"
            raise BundleError(f"{folder}: cannot be read: {reason}") from None
        scorer.score(WARM_UP)
        self._scorers[label] = scorer
        release_freed_memory()
        return os.getpid()

    def unload(self, label: str) -> None:
        self._scorers.pop(label, None)
        release_freed_memory()

    def score(self, job: ScoreJob) -> WorkerScores:
        """Score the edges of a trie.

        Raises:
            ScoringError: a score is not finite.
            Unavailable: the bundle is not loaded.
        """
        scorer = self._scorers.get(job.label)
        if scorer is None:
            raise Unavailable(f"{job.label} is not loaded")
        encoders = {name: scorer.encoders[name] for name in job.encoders}
        stopwatch, context_words, device_bytes = Stopwatch(), ContextWords(), dict[str, int]()
        with stopwatch.running(), context_words.counting():
            scores = scorer.score(job.trie, job.models, encoders)
        if self._device != "cpu":
            from rescorer.models.kernels import memory_bytes

            device_bytes = memory_bytes(self._device)
        return WorkerScores(scores, seconds_of(stopwatch), context_words, device_bytes)

    def probe(self) -> None:
        """Score a tiny trie with every model; a device that no longer works raises its error."""
        for scorer in list(self._scorers.values()):
            scorer.score(WARM_UP)


class ChildModels:
    """The models of one bundle, in a child process."""

    def __init__(self, machine: MachineSettings) -> None:
        self._connection, child_end = socket.socketpair()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", frames.HOST_MODULE, str(child_end.fileno()), machine.pack()],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._is_closed = False

    def load(self, label: str, folder: Path, timeout_s: float) -> int:
        """Load the bundle, and return the id of the process.

        Raises:
            TimeoutError: that takes longer than ``timeout_s``.
        """
        self._connection.settimeout(timeout_s)
        header = self._ask({"do": "load", "label": label, "folder": str(folder)}).header
        self._connection.settimeout(None)
        return int(header["pid"])

    def score(self, job: ScoreJob) -> WorkerScores:
        return WorkerScores.unpack(self._ask(*job.pack()))

    def probe(self) -> None:
        self._ask({"do": "probe"})

    def watch(self, on_lost: Callable[[], object]) -> None:
        """Call ``on_lost`` in a thread when the process dies, unless it is closed before."""

        def wait() -> None:
            self._process.wait()
            if not self._is_closed:
                on_lost()

        threading.Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        """Kill the process, whatever it is doing."""
        self._is_closed = True
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> Frame:
        frame = None
        with suppress(ConnectionError):
            self._connection.sendall(frames.pack({**header, "id": 1}, arrays))
            frame = next(frames.read_frames(self._connection), None)
        if frame is None:
            raise WorkerLost("a process has died")
        if error := frames.error_from_header(frame.header):
            raise error
        return frame


class SharedModels:
    """The models of a worker, for one or more clients, whose requests are served in order of arrival.

    A client is a server, a front end, or any other object. A bundle is in memory once, and stays there while
    any client has it loaded.

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
        create_child: Callable[[], ChildModels] | None = None,
        load_timeout_s: float = 600.0,
        on_first_score: Callable[[], object] = lambda: None,
    ) -> None:
        self._models, self._create_child, self._load_timeout_s = models, create_child, load_timeout_s
        self._on_first_score = on_first_score
        self._has_scored = False
        self._clients: dict[str, set[object]] = {}  # the clients that have a bundle loaded, by label
        self._children: dict[str, ChildModels] = {}
        self._pids: dict[str, int] = {}
        self._failures: dict[str, tuple[float, Exception]] = {}
        """When a bundle could not be loaded, and why, by label."""
        self._changing = threading.Lock()
        self._scoring = ThreadPoolExecutor(1, "scoring")  # the only thread that uses the models

    @property
    def labels(self) -> set[str]:
        """Labels of the bundles in memory."""
        return set(self._clients)

    def load(self, client: object, label: str, folder: Path, *, beside: bool = False) -> int:
        """Load a bundle unless it is in memory, and return the id of the process that holds it.

        Args:
            beside: whether a client may need scores in the meantime, so that another process must load the
                bundle.

        Raises:
            BundleError, ConfigError, ScoringError: see ``LoadedModels.load``.
        """
        began_at = time.monotonic()
        if not self._changing.acquire(timeout=self._load_timeout_s):
            raise frames.load_timeout_error(label, self._load_timeout_s)
        try:
            if label not in self._clients:
                self._pids[label] = self._load_first(label, folder, began_at, beside or self._has_scored)
            self._clients.setdefault(label, set()).add(client)
            return self._pids[label]
        finally:
            self._changing.release()

    def unload(self, client: object, label: str) -> None:
        """Free the memory of a bundle unless another client has it loaded."""
        with self._changing:
            clients = self._clients.get(label, set())
            clients.discard(client)
            if not clients and self._clients.pop(label, None) is not None:
                self._scoring.submit(self._drop, label).result()

    def unload_all(self, client: object) -> None:
        """Unload all bundles of a client."""
        for label in self.labels:
            self.unload(client, label)

    def score(self, job: ScoreJob) -> Future[WorkerScores]:
        """Score a trie as ``LoadedModels.score`` does."""

        def score() -> WorkerScores:
            holder: LoadedModels | ChildModels = self._children.get(job.label, self._models)
            result = holder.score(job)
            if not self._has_scored:
                self._has_scored = True
                self._on_first_score()
            return result

        return self._scoring.submit(score)

    def probe(self) -> Future[None]:
        """Score a tiny trie with every model; a device that no longer works raises its error."""

        def probe() -> None:
            self._models.probe()
            for child in self._children.values():
                child.probe()

        return self._scoring.submit(probe)

    def close(self) -> None:
        """Score nothing more; waiting jobs are cancelled."""
        self._scoring.shutdown(wait=False, cancel_futures=True)

    def _load_first(self, label: str, folder: Path, began_at: float, in_child: bool) -> int:
        """Load a bundle that is not in memory; if that fails, it fails for all clients who waited for it."""
        failed_at, failure = self._failures.pop(label, (0.0, None))
        if failure is None or failed_at < began_at:
            try:
                if self._create_child is None or not in_child:
                    return self._models.load(label, folder)
                timeout_s = max(began_at + self._load_timeout_s - time.monotonic(), 0.001)
                return self._load_in_child(self._create_child(), label, folder, timeout_s)
            except Exception as error:
                failed_at, failure = time.monotonic(), error
        self._failures[label] = failed_at, failure
        raise failure

    def _load_in_child(self, child: ChildModels, label: str, folder: Path, timeout_s: float) -> int:
        try:
            pid = child.load(label, folder, timeout_s)
        except BaseException as error:
            child.close()
            if isinstance(error, TimeoutError):
                raise frames.load_timeout_error(label, self._load_timeout_s) from None
            if isinstance(error, WorkerLost):
                raise frames.loader_died_error(folder) from None
            raise
        child.watch(lambda: os._exit(1))  # the worker is replaced as a whole
        self._children[label] = child
        return pid

    def _drop(self, label: str) -> None:
        if child := self._children.pop(label, None):
            child.close()
        else:
            self._models.unload(label)


class ThreadWorker:
    """A worker that is a thread of this process. Once stopped, it cannot be started again."""

    def __init__(self, device: str, threads: int, load: LoadScorer = TrieScorer.load) -> None:
        self._models = SharedModels(LoadedModels(device, threads, load))
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
        await self._finish(lambda: self._loading.submit(self._models.load, self, label, folder))
        self.labels.add(label)

    async def load_beside(self, label: str, folder: Path) -> None:
        await self.load(label, folder)

    async def unload(self, label: str) -> None:
        if self._stopped:
            raise WorkerLost("the scoring thread has stopped")
        unloading = self._loading.submit(self._models.unload, self, label)
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
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._models.close()

    async def terminate(self) -> None:
        await self.stop()

    async def _finish(self, begin: Callable[[], Future[Result]]) -> Result:
        if self._stopped:
            raise WorkerLost("the scoring thread has stopped")
        try:
            return await asyncio.wrap_future(begin())
        except asyncio.CancelledError:
            if self._stopped:  # before the job was started
                raise WorkerLost("the scoring thread has stopped") from None
            raise


BACKGROUND_OPERATIONS = ("load", "load_beside", "unload")
"""Operations that run in the second thread of ``serve``."""


def serve(connection: socket.socket, models: SharedModels) -> None:
    """Answer a client's requests in order of arrival until the client disconnects; then unload its bundles.

    A second thread loads and unloads bundles, because both may take long: unloading waits while a bundle of
    another client is being loaded.
    """
    client, sending = object(), threading.Lock()

    def answer(frame: Frame) -> None:
        arrays: Arrays = {}
        try:
            header, arrays = perform(models, client, frame)
        except Exception as error:
            header = frames.error_header(error)
        header["id"] = frame.header["id"]
        with sending:
            connection.sendall(frames.pack(header, arrays))

    try:
        with ThreadPoolExecutor(1, "loading") as loading, suppress(ConnectionError):  # the client is gone
            for frame in frames.read_frames(connection):
                if frame.header["do"] in BACKGROUND_OPERATIONS:
                    loading.submit(answer, frame)
                else:
                    answer(frame)
    finally:
        models.unload_all(client)


def perform(models: SharedModels, client: object, frame: Frame) -> tuple[dict[str, Any], Arrays]:
    """Carry out a request, and return the header and the arrays of the reply."""
    header = frame.header
    match header["do"]:
        case "greet":
            return {"pid": os.getpid()}, {}
        case "load" | "load_beside" as operation:
            beside, folder = operation == "load_beside", Path(header["folder"])
            return {"pid": models.load(client, header["label"], folder, beside=beside)}, {}
        case "unload":
            models.unload(client, header["label"])
            return {}, {}
        case "probe":
            models.probe().result()
            return {}, {}
        case "score":
            return models.score(ScoreJob.unpack(frame)).result().pack()
    raise ValueError(f"unknown operation {header['do']!r}")


def accept_connections(listening: socket.socket, models: SharedModels) -> None:
    """Serve each connection in its own thread."""

    def serve_and_close(connection: socket.socket) -> None:
        with connection:
            serve(connection, models)

    while True:
        threading.Thread(target=serve_and_close, args=listening.accept()[:1], daemon=True).start()


def main(descriptor: int, machine: MachineSettings, listening: int | None = None) -> None:
    """Run a worker process; see the module."""
    ignore_group_signals()
    use_parents_stderr()
    keep_freed_memory()
    load = partial(TrieScorer.load, dtype=machine.dtype, context_cache_bytes=machine.context_cache_bytes)
    models = LoadedModels(machine.device, machine.threads, load)
    with socket.socket(fileno=descriptor) as connection, suppress(ConnectionError):  # the server is gone
        if listening is None:
            serve(connection, SharedModels(models))
        else:
            shared = SharedModels(
                models,
                partial(ChildModels, machine),
                machine.load_timeout_s,
                lambda: connection.sendall(frames.pack({"id": frames.HAS_WORKED})),
            )
            arguments = socket.socket(fileno=listening), shared
            threading.Thread(target=accept_connections, args=arguments, daemon=True).start()
            # The server sends nothing: this returns when it closes the socket.
            frames.receive_exactly(connection, 1)
    os._exit(0)  # without waiting for batches in progress


if __name__ == "__main__":
    main(int(sys.argv[1]), MachineSettings(**json.loads(sys.argv[2])), *map(int, sys.argv[3:]))
