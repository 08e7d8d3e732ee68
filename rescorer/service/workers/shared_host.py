"""Share the models of a worker between several front ends.

Bundles that are loaded before the worker's first batch are in the worker's own process. Later ones get a
child process each, because loading keeps a process busy: reading an ARPA file needs Python's global
interpreter lock. So a process that serves front ends never loads, and a bundle that kills the process
that loads it harms nobody.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from rescorer.service.workers.ipc import Arrays, Frame, WorkerLost, error_from_header, pack, read_frames
from rescorer.service.workers.model_host import ModelHost
from rescorer.service.workers.trie_arrays import pack_trie
from rescorer.service.workers.worker import (
    WorkerScores,
    load_timeout_error,
    loader_died_error,
    parse_worker_scores,
    score_request,
)
from rescorer.trie import HypothesisTrie


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
