"""Hold the models of a worker in memory, and answer the requests of one server or of several front ends.

    python -m rescorer.service.workers.host SOCKET DEVICE THREADS DTYPE CACHE_BYTES LOAD_TIMEOUT_S [LISTENING]

A worker process answers requests on an inherited socket until that is closed. With a second, listening
socket, it serves everyone who connects to it, and uses the first socket only to report its first scored batch
and to notice the end of the server. It ignores the signals that stop a server; it exits when the server
closes the socket or is gone.

Front ends share the bundles of their worker. Those that are loaded before its first batch are in the worker
process itself. Later ones get a child process each, because loading keeps a process busy: reading an ARPA
file needs Python's global interpreter lock. So a process that serves front ends never loads, and a bundle
that kills the process that loads it harms no other.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
from rescorer.service.workers.frames import Arrays, Frame, MachineSettings, WorkerLost, WorkerScores
from rescorer.signals import ignore_group_signals
from rescorer.trie import EdgeScores, HypothesisTrie, build_trie

LoadScorer = Callable[..., TrieScorer]
"""Loads a bundle's models; takes the arguments of ``TrieScorer.load``."""

Result = TypeVar("Result")

WARM_UP = build_trie([("warm", "up"), ()])


class ModelHost:
    """Models of several bundles on one device.

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
        """Load and warm a bundle, make it available under its label, and return the id of the process.

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

    def score_and_measure(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> WorkerScores:
        """Score a trie like ``score``, and measure the time and memory that this took."""
        stopwatch, context_words, device_bytes = Stopwatch(), ContextWords(), dict[str, int]()
        with stopwatch.running(), context_words.counting():
            scores = self.score(label, trie, only, encode)
        if self._device != "cpu":
            from rescorer.models.kernels import memory_bytes

            device_bytes = memory_bytes(self._device)
        return WorkerScores(scores, seconds_of(stopwatch), context_words, device_bytes)

    def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> dict[str, EdgeScores]:
        """Score the edges of a trie with the models of a bundle.

        Args:
            only: names of the models to score with; empty: all models.
            encode: names of the rerankers of the bundle for which words are encoded.

        Raises:
            ScoringError: a score is not finite.
            Unavailable: the bundle is not loaded.
        """
        scorer = self._scorers.get(label)
        if scorer is None:
            raise Unavailable(f"{label} is not loaded")
        return scorer.score(trie, only, {name: scorer.encoders[name] for name in encode})

    def probe(self) -> None:
        """Score a tiny trie with every model; raises the error of a device that no longer works."""
        for scorer in list(self._scorers.values()):
            scorer.score(WARM_UP)


class ChildHost:
    """A child process that holds one bundle."""

    def __init__(self, machine: MachineSettings) -> None:
        self._connection, child_end = socket.socketpair()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", frames.HOST_MODULE, str(child_end.fileno()), *map(str, machine)],
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

    def score_and_measure(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> WorkerScores:
        return frames.parse_worker_scores(
            self._ask(frames.score_request(label, only, encode), frames.pack_trie(trie))
        )

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


class WorkerHost:
    """The bundles of a worker for its clients, whose requests are served in the order of their arrival.

    A client is a server, a front end, or any other object. A bundle is in memory once, and stays there while
    any client has it loaded.

    Args:
        models: holds the bundles of this process.
        create_child: creates a process for a bundle that is loaded while this one is in service; None: this
            process loads all bundles.
        load_timeout_s: longest time that another process may take to load a bundle.
        on_first_score: called once, after the first scored trie.
    """

    def __init__(
        self,
        models: ModelHost,
        create_child: Callable[[], ChildHost] | None = None,
        load_timeout_s: float = 600.0,
        on_first_score: Callable[[], object] = lambda: None,
    ) -> None:
        self._models, self._create_child, self._load_timeout_s = models, create_child, load_timeout_s
        self._on_first_score = on_first_score
        self._has_scored = False
        self._clients: dict[str, set[object]] = {}  # the clients that have a bundle loaded, by label
        self._children: dict[str, ChildHost] = {}
        self._pids: dict[str, int] = {}
        self._failures: dict[str, tuple[float, Exception]] = {}
        """Why a bundle could not be loaded and when that was found out, by label."""
        self._changing = threading.Lock()
        self._scoring = ThreadPoolExecutor(1, "scoring")  # the only thread that uses the models

    @property
    def labels(self) -> set[str]:
        """Labels of the bundles in memory."""
        return set(self._clients)

    def load(self, client: object, label: str, folder: Path, *, beside: bool = False) -> int:
        """Load a bundle unless it is in memory, and return the id of the process that holds it.

        Args:
            beside: whether a client may need scores in the meantime, so that another process must load it.

        Raises:
            BundleError, ConfigError, ScoringError: see ``ModelHost.load``.
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

    def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> Future[WorkerScores]:
        """Score a trie as ``ModelHost.score`` does."""

        def score() -> WorkerScores:
            holder: ModelHost | ChildHost = self._children.get(label, self._models)
            result = holder.score_and_measure(label, trie, only, encode)
            if not self._has_scored:
                self._has_scored = True
                self._on_first_score()
            return result

        return self._scoring.submit(score)

    def probe(self) -> Future[None]:
        """Score a tiny trie with every model; fails with the error of a device that no longer works."""

        def probe() -> None:
            holders: tuple[ModelHost | ChildHost, ...] = (self._models, *self._children.values())
            for holder in holders:
                holder.probe()

        return self._scoring.submit(probe)

    def close(self) -> None:
        """Score nothing more; what waits is cancelled."""
        self._scoring.shutdown(wait=False, cancel_futures=True)

    def _load_first(self, label: str, folder: Path, began_at: float, in_child: bool) -> int:
        """Load a bundle that is not in memory; a failure is that of all clients who waited for it."""
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

    def _load_in_child(self, child: ChildHost, label: str, folder: Path, timeout_s: float) -> int:
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
        self._host = WorkerHost(ModelHost(device, threads, load))
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
        await self._finish(lambda: self._loading.submit(self._host.load, self, label, folder))
        self.labels.add(label)

    async def load_beside(self, label: str, folder: Path) -> None:
        await self.load(label, folder)

    async def unload(self, label: str) -> None:
        if self._stopped:
            raise WorkerLost("the scoring thread has stopped")
        unloading = self._loading.submit(self._host.unload, self, label)
        if label in self.labels:  # otherwise it was not loaded, or is still being loaded after the time limit
            self.labels.discard(label)
            await self._finish(lambda: unloading)

    async def probe(self) -> None:
        await self._finish(self._host.probe)

    async def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str] = ()
    ) -> WorkerScores:
        result = await self._finish(lambda: self._host.score(label, trie, only, encode))
        self.device_bytes = result.device_bytes
        return result

    async def stop(self) -> None:
        self._stopped = True
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._host.close()

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


def serve(connection: socket.socket, host: WorkerHost) -> None:
    """Answer a client's requests in the order of their arrival until it disconnects, and unload its bundles.

    A second thread loads and unloads bundles. Unloading needs it too: it waits while a bundle of another
    client is being loaded.
    """
    client, sending = object(), threading.Lock()

    def answer(frame: Frame) -> None:
        arrays: Arrays = {}
        try:
            header, arrays = perform(host, client, frame)
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
        host.unload_all(client)


def perform(host: WorkerHost, client: object, frame: Frame) -> tuple[dict[str, Any], Arrays]:
    """Do what a request asks for, and return the header and the arrays of the reply."""
    header = frame.header
    match header["do"]:
        case "greet":
            return {"pid": os.getpid()}, {}
        case "load" | "load_beside" as operation:
            beside, folder = operation == "load_beside", Path(header["folder"])
            return {"pid": host.load(client, header["label"], folder, beside=beside)}, {}
        case "unload":
            host.unload(client, header["label"])
            return {}, {}
        case "probe":
            host.probe().result()
            return {}, {}
        case "score":
            trie = frames.unpack_trie(frame.arrays)
            scored = host.score(header["label"], trie, header["only"], header["encode"])
            return frames.score_reply(scored.result())
    raise ValueError(f"unknown operation {header['do']!r}")


def accept_connections(listening: socket.socket, host: WorkerHost) -> None:
    """Serve each connection in its own thread."""

    def serve_and_close(connection: socket.socket) -> None:
        with connection:
            serve(connection, host)

    while True:
        threading.Thread(target=serve_and_close, args=listening.accept()[:1], daemon=True).start()


def main(descriptor: int, machine: MachineSettings, listening: int | None = None) -> None:
    """Run a worker process; see the module."""
    ignore_group_signals()
    use_parents_stderr()
    keep_freed_memory()
    load = partial(TrieScorer.load, dtype=machine.dtype, context_cache_bytes=machine.context_cache_bytes)
    models = ModelHost(machine.device, machine.threads, load)
    with socket.socket(fileno=descriptor) as connection, suppress(ConnectionError):  # the server is gone
        if listening is None:
            serve(connection, WorkerHost(models))
        else:
            host = WorkerHost(
                models,
                partial(ChildHost, machine),
                machine.load_timeout_s,
                lambda: connection.sendall(frames.pack({"id": frames.HAS_WORKED})),
            )
            arguments = socket.socket(fileno=listening), host
            threading.Thread(target=accept_connections, args=arguments, daemon=True).start()
            # The server sends nothing: this returns when it closes the socket.
            frames.receive_exactly(connection, 1)
    os._exit(0)  # without waiting for batches in progress


if __name__ == "__main__":
    device, threads, dtype, cache_bytes, timeout_s = sys.argv[2:7]
    main(
        int(sys.argv[1]),
        MachineSettings(device, int(threads), dtype, int(cache_bytes), float(timeout_s)),
        *map(int, sys.argv[7:]),
    )
