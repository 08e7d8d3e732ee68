"""Run a worker process, which answers requests on an inherited socket until that is closed.

    python -m rescorer.service.workers SOCKET DEVICE THREADS DTYPE CACHE_BYTES [LISTENING LOAD_TIMEOUT_S]

With a second, listening socket, the process serves everyone who connects to it, and uses the first socket
only to report its first scored batch and to notice the end of the server. It ignores the signals that stop a
server; it exits when the server closes the socket or is gone.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rescorer.lm.malloc import keep_freed_memory
from rescorer.runtime.signals import ignore_group_signals
from rescorer.service.observability.stderr import use_parents_stderr
from rescorer.service.workers.ipc import (
    HAS_WORKED,
    Arrays,
    Frame,
    error_header,
    pack,
    read_frames,
    receive_exactly,
)
from rescorer.service.workers.model_host import ModelHost
from rescorer.service.workers.shared_host import ChildHost, SharedModelHost, Tenant
from rescorer.service.workers.trie_arrays import pack_scores, unpack_trie
from rescorer.service.workers.worker import WorkerScores
from rescorer.trie import HypothesisTrie
from rescorer.trie_scorer import TrieScorer

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
