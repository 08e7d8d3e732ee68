"""Hold the models of a worker in memory, and answer the requests of one server or of several front ends.

Share the models of a worker between several front ends.

Bundles that are loaded before the worker's first batch are in the worker's own process. Later ones get a
child process each, because loading keeps a process busy: reading an ARPA file needs Python's global
interpreter lock. So a process that serves front ends never loads, and a bundle that kills the process
that loads it harms nobody.

Run a worker process, which answers requests on an inherited socket until that is closed.

    python -m rescorer.service.workers SOCKET DEVICE THREADS DTYPE CACHE_BYTES [LISTENING LOAD_TIMEOUT_S]

With a second, listening socket, the process serves everyone who connects to it, and uses the first socket
only to report its first scored batch and to notice the end of the server. It ignores the signals that stop a
server; it exits when the server closes the socket or is gone.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rescorer.errors import BundleError, ScoringError, Unavailable
from rescorer.models.language_model import EdgeScores
from rescorer.pipeline import TrieScorer
from rescorer.runtime import (
    ContextWords,
    Stopwatch,
    ignore_group_signals,
    keep_freed_memory,
    release_freed_memory,
    use_threads,
)
from rescorer.service.logs import seconds_of, use_parents_stderr
from rescorer.service.workers.frames import (
    HAS_WORKED,
    Arrays,
    Frame,
    WorkerLost,
    error_from_header,
    error_header,
    pack,
    pack_scores,
    pack_trie,
    read_frames,
    receive_exactly,
    unpack_trie,
)
from rescorer.service.workers.worker import (
    WorkerScores,
    load_timeout_error,
    loader_died_error,
    parse_worker_scores,
    score_request,
)
from rescorer.trie import HypothesisTrie, build_trie

LoadScorer = Callable[..., TrieScorer]
"""Loads a bundle's models; takes the arguments of ``TrieScorer.load``."""

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
            BundleError: If the bundle cannot be used.
            ConfigError: If this machine does not have the device.
            ScoringError: If the models give scores that are not finite.
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
        stopwatch, context_words = Stopwatch(), ContextWords()
        with stopwatch.running(), context_words.counting():
            scores = self.score(label, trie, only, encode)
        return WorkerScores(scores, seconds_of(stopwatch), context_words, self.device_bytes())

    def device_bytes(self) -> dict[str, int]:
        """Memory on a GPU in bytes, by kind; empty on a CPU."""
        if self._device == "cpu":
            return {}
        from rescorer.models.kernels import memory_bytes

        return memory_bytes(self._device)

    def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> dict[str, EdgeScores]:
        """Score the edges of a trie with the models of a bundle.

        Args:
            only: names of the models to score with; empty: all models.
            encode: names of the rerankers of the bundle for which words are encoded.

        Raises:
            ScoringError: If a score is not finite.
            Unavailable: If the bundle is not loaded.
        """
        scorer = self._scorers.get(label)
        if scorer is None:
            raise Unavailable(f"{label} is not loaded")
        return scorer.score(trie, only, {name: scorer.encoders[name] for name in encode})

    def probe(self) -> None:
        """Score a tiny trie with every model; raises the error of a device that no longer works."""
        for scorer in list(self._scorers.values()):
            scorer.score(WARM_UP)


Result = TypeVar("Result")


class ThreadWorker:
    """A worker that is a thread of this process. Once stopped, it cannot be started again."""

    def __init__(self, device: str, threads: int, load: LoadScorer = TrieScorer.load) -> None:
        self._host = ModelHost(device, threads, load)
        self._scoring = ThreadPoolExecutor(1, "scoring")
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
        await self._run(self._loading, lambda: self._host.load(label, folder))
        self.labels.add(label)

    async def load_beside(self, label: str, folder: Path) -> None:
        await self.load(label, folder)

    async def unload(self, label: str) -> None:
        self.labels.discard(label)
        await self._run(self._scoring, lambda: self._host.unload(label))

    async def probe(self) -> None:
        await self._run(self._scoring, self._host.probe)

    async def score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str] = ()
    ) -> WorkerScores:
        result = await self._run(
            self._scoring, lambda: self._host.score_and_measure(label, trie, only, encode)
        )
        self.device_bytes = result.device_bytes
        return result

    async def stop(self) -> None:
        self._stopped = True
        for executor in (self._scoring, self._loading):
            executor.shutdown(wait=False, cancel_futures=True)

    async def terminate(self) -> None:
        await self.stop()

    async def _run(self, executor: ThreadPoolExecutor, job: Callable[[], Result]) -> Result:
        if self._stopped:
            raise WorkerLost("the scoring thread has stopped")
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, job)
        except asyncio.CancelledError:
            if self._stopped:  # before the job was started
                raise WorkerLost("the scoring thread has stopped") from None
            raise


class ChildHost:
    """A child process that holds one bundle."""

    def __init__(self, device: str, threads: int, dtype: str, context_cache_bytes: int) -> None:
        self._connection, child_end = socket.socketpair()
        with child_end:
            arguments = map(str, (child_end.fileno(), device, threads, dtype, context_cache_bytes))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rescorer.service.workers", *arguments],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._is_closed = False

    def load(self, label: str, folder: Path, timeout_s: float) -> int:
        """Load the bundle, and return the id of the process.

        Raises:
            TimeoutError: If that takes longer than ``timeout_s``.
        """
        self._connection.settimeout(timeout_s)
        header = self._ask({"do": "load", "label": label, "folder": str(folder)}).header
        self._connection.settimeout(None)
        return int(header["pid"])

    def score_and_measure(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> WorkerScores:
        return parse_worker_scores(self._ask(score_request(label, only, encode), pack_trie(trie)))

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
            self._connection.sendall(pack({**header, "id": 1}, arrays))
            frame = next(read_frames(self._connection), None)
        if frame is None:
            raise WorkerLost("a process has died")
        if error := error_from_header(frame.header):
            raise error
        return frame


class SharedModelHost:
    """A host for several tenants, whose requests are served in the order of their arrival.

    A bundle is in memory once, and stays there while any tenant has it loaded.

    Args:
        host: holds the bundles that are loaded before the first score.
        create_child: creates a process for another bundle.
        load_timeout_s: longest time that another process may take to load a bundle.
        on_first_score: called once, after the first scored trie.
    """

    def __init__(
        self,
        host: ModelHost,
        create_child: Callable[[], ChildHost],
        load_timeout_s: float,
        on_first_score: Callable[[], None] = lambda: None,
    ) -> None:
        self._host, self._create_child, self._load_timeout_s = host, create_child, load_timeout_s
        self._on_first_score = on_first_score
        self._has_scored = False
        self._tenants: dict[str, set[Tenant]] = {}  # the tenants that have a bundle loaded, by label
        self._children: dict[str, ChildHost] = {}
        self._pids: dict[str, int] = {}
        self._failures: dict[str, tuple[float, Exception]] = {}
        """Why a bundle could not be loaded and when that was found out, by label."""
        self._changing = threading.Lock()
        self._scoring = ThreadPoolExecutor(1, "scoring")  # the only thread that uses the models

    @property
    def labels(self) -> set[str]:
        """Labels of the bundles in memory."""
        return set(self._tenants)

    def load(self, tenant: Tenant, label: str, folder: Path, *, beside: bool = False) -> int:
        """Load a bundle unless it is in memory, and return the id of the process that holds it.

        Args:
            beside: whether a tenant may need scores in the meantime, so that another process must load it.
        """
        began_at = time.monotonic()
        if not self._changing.acquire(timeout=self._load_timeout_s):
            raise load_timeout_error(label, self._load_timeout_s)
        try:
            if label not in self._tenants:
                self._pids[label] = self._load_first(
                    label, folder, began_at, in_child=beside or self._has_scored
                )
            self._tenants.setdefault(label, set()).add(tenant)
            return self._pids[label]
        finally:
            self._changing.release()

    def unload(self, tenant: Tenant, label: str) -> None:
        with self._changing:
            tenants = self._tenants.get(label, set())
            tenants.discard(tenant)
            if not tenants and self._tenants.pop(label, None) is not None:
                self._scoring.submit(self._drop, label).result()

    def score_and_measure(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str]
    ) -> WorkerScores:
        result = self._scoring.submit(self._score, label, trie, only, encode).result()
        if not self._has_scored:
            self._has_scored = True
            self._on_first_score()
        return result

    def probe(self) -> None:
        self._scoring.submit(self._probe).result()

    def _load_first(self, label: str, folder: Path, began_at: float, *, in_child: bool) -> int:
        """Load a bundle that is not in memory; a failure is that of all tenants who waited for it."""
        failed_at, failure = self._failures.pop(label, (0.0, None))
        if failure is None or failed_at < began_at:
            try:
                if not in_child:
                    return self._host.load(label, folder)
                return self._load_in_child(label, folder, began_at + self._load_timeout_s - time.monotonic())
            except Exception as error:
                failed_at, failure = time.monotonic(), error
        self._failures[label] = failed_at, failure
        raise failure

    def _load_in_child(self, label: str, folder: Path, timeout_s: float) -> int:
        child = self._create_child()
        try:
            pid = child.load(label, folder, max(timeout_s, 0.001))
        except BaseException as error:
            child.close()
            if isinstance(error, TimeoutError):
                raise load_timeout_error(label, self._load_timeout_s) from None
            if isinstance(error, WorkerLost):
                raise loader_died_error(folder) from None
            raise
        child.watch(lambda: os._exit(1))  # the worker is replaced as a whole
        self._children[label] = child
        return pid

    def _score(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str]
    ) -> WorkerScores:
        return self._children.get(label, self._host).score_and_measure(label, trie, only, encode)

    def _probe(self) -> None:
        hosts: tuple[ModelHost | ChildHost, ...] = (self._host, *self._children.values())
        for host in hosts:
            host.probe()

    def _drop(self, label: str) -> None:
        if child := self._children.pop(label, None):
            child.close()
        else:
            self._host.unload(label)


class Tenant:
    """One front end's view of a shared host, with its own set of bundles."""

    def __init__(self, shared: SharedModelHost) -> None:
        self._shared = shared

    def load(self, label: str, folder: Path) -> int:
        """Load a bundle like ``ModelHost.load``; return at once if another tenant has it loaded."""
        return self._shared.load(self, label, folder)

    def load_beside(self, label: str, folder: Path) -> int:
        """Load a bundle in another process, while this one serves."""
        return self._shared.load(self, label, folder, beside=True)

    def unload(self, label: str) -> None:
        self._shared.unload(self, label)

    def score_and_measure(
        self, label: str, trie: HypothesisTrie, only: Sequence[str] = (), encode: Sequence[str] = ()
    ) -> WorkerScores:
        return self._shared.score_and_measure(label, trie, only, encode)

    def probe(self) -> None:
        self._shared.probe()

    def unload_all(self) -> None:
        """Unload all bundles of this tenant."""
        for label in self._shared.labels:
            self.unload(label)


Reply = tuple[dict[str, Any], Arrays]


class Host(Protocol):
    """A ``ModelHost`` or a ``Tenant`` of a shared one."""

    def load(self, label: str, folder: Path) -> int: ...

    def unload(self, label: str) -> None: ...

    def score_and_measure(
        self, label: str, trie: HypothesisTrie, only: Sequence[str], encode: Sequence[str]
    ) -> WorkerScores: ...

    def probe(self) -> None: ...


def main(
    descriptor: int,
    device: str,
    threads: int,
    dtype: str,
    context_cache_bytes: int,
    listening: str = "",
    load_timeout_s: str = "",
) -> None:
    ignore_group_signals()
    use_parents_stderr()
    keep_freed_memory()
    load = partial(TrieScorer.load, dtype=dtype, context_cache_bytes=context_cache_bytes)
    host = ModelHost(device, threads, load)
    with socket.socket(fileno=descriptor) as connection, suppress(ConnectionError):  # the server is gone
        if not listening:
            serve(connection, host)
            return
        create_child = partial(ChildHost, device, threads, dtype, context_cache_bytes)
        shared = SharedModelHost(
            host, create_child, float(load_timeout_s), lambda: connection.sendall(pack({"id": HAS_WORKED}))
        )
        arguments = socket.socket(fileno=int(listening)), shared
        threading.Thread(target=accept_connections, args=arguments, daemon=True).start()
        receive_exactly(connection, 1)  # the server sends nothing: this returns when it closes the socket
    os._exit(0)  # without waiting for batches in progress


def accept_connections(listening: socket.socket, shared: SharedModelHost) -> None:
    """Serve each connection in a thread of its own."""

    def serve_tenant(connection: socket.socket) -> None:
        tenant = Tenant(shared)
        try:
            with connection, suppress(ConnectionError):  # the front end is gone
                serve(connection, tenant)
        finally:
            tenant.unload_all()

    while True:
        threading.Thread(target=serve_tenant, args=listening.accept()[:1], daemon=True).start()


def serve(connection: socket.socket, host: Host) -> None:
    """Answer requests in the order of their arrival, but load and unload bundles in a second thread.

    Unloading also needs the second thread: in a shared host it waits while a bundle of another front end is
    being loaded.
    """
    sending = threading.Lock()

    def answer(frame: Frame, operation: Callable[[Host, Frame], Reply]) -> None:
        try:
            header, arrays = operation(host, frame)
        except Exception as error:
            header, arrays = error_header(error), {}
        header["id"] = frame.header["id"]
        with sending:
            connection.sendall(pack(header, arrays))

    with ThreadPoolExecutor(1, "loading") as loading:
        for frame in read_frames(connection):
            name = frame.header["do"]
            if name in BACKGROUND_OPERATIONS:
                loading.submit(answer, frame, BACKGROUND_OPERATIONS[name])
            else:
                answer(frame, OPERATIONS[name])


def greet(host: Host, frame: Frame) -> Reply:
    return {"pid": os.getpid()}, {}


def load(host: Host, frame: Frame) -> Reply:
    return {"pid": host.load(frame.header["label"], Path(frame.header["folder"]))}, {}


def load_beside(host: Host, frame: Frame) -> Reply:
    assert isinstance(host, Tenant), "other processes load only before they are in service"
    return {"pid": host.load_beside(frame.header["label"], Path(frame.header["folder"]))}, {}


def unload(host: Host, frame: Frame) -> Reply:
    host.unload(frame.header["label"])
    return {}, {}


def probe(host: Host, frame: Frame) -> Reply:
    host.probe()
    return {}, {}


def score(host: Host, frame: Frame) -> Reply:
    trie = unpack_trie(frame.arrays)
    header = frame.header
    result = host.score_and_measure(header["label"], trie, header["only"], header["encode"])
    header = {
        "seconds": result.seconds,
        "context_words": asdict(result.context_words),
        "device_bytes": result.device_bytes,
    }
    return header, pack_scores(result.scores)


Operations = dict[str, Callable[[Host, Frame], Reply]]
OPERATIONS: Operations = {"greet": greet, "probe": probe, "score": score}
BACKGROUND_OPERATIONS: Operations = {"load": load, "load_beside": load_beside, "unload": unload}
"""Operations that run in the second thread of ``serve``."""

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), *sys.argv[6:])
