"""Owns the process that scores: it answers frames on the socket it was born with until that is closed.

    python -m rescorer.service.workers SOCKET DEVICE THREADS DTYPE CONTEXT_CACHE_BYTES [LISTENING]

With a second socket, which listens, it answers there whoever connects; by the first one it only says that it
works, once it has scored something, and hears when to end. Signals to stop are the server's business: this
process ends when the server closes the socket or is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rescorer.lm.malloc import keep_freed_memory
from rescorer.service.workers.ipc import (
    PREFIX,
    WORKS,
    Arrays,
    Frame,
    fault_header,
    lengths,
    pack,
    score_arrays,
    trie_of,
    unpack,
)
from rescorer.service.workers.model_host import ModelHost, SharedModelHost, Tenant, WorkerScores
from rescorer.trie import HypothesisTrie
from rescorer.trie_scorer import TrieScorer

Answer = tuple[dict[str, Any], Arrays]


class Host(Protocol):
    """Whose models are asked; methods as of ``ModelHost``."""

    def load(self, label: str, folder: Path) -> None: ...

    def unload(self, label: str) -> None: ...

    def measured(self, label: str, trie: HypothesisTrie, only: Sequence[str]) -> WorkerScores: ...

    def probe(self) -> None: ...


def main(
    descriptor: int,
    device: str,
    threads: int,
    dtype: str,
    context_cache_bytes: int,
    listening: int | None = None,
) -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    keep_freed_memory()
    load = partial(TrieScorer.load, dtype=dtype, context_cache_bytes=context_cache_bytes)
    host = ModelHost(device, threads, load)
    with socket.socket(fileno=descriptor) as connection, suppress(ConnectionError):  # the server is gone
        if listening is None:
            serve(connection, host)
            return
        shared = SharedModelHost(host, lambda: connection.sendall(pack({"id": WORKS})))
        arguments = socket.socket(fileno=listening), shared
        threading.Thread(target=serve_all, args=arguments, daemon=True).start()
        received(connection, 1)  # nothing comes: it ends with the server
    os._exit(0)  # whatever is being scored


def serve_all(listening: socket.socket, shared: SharedModelHost) -> None:
    """Serves whoever connects, each in a thread of its own."""

    def serve_one(connection: socket.socket) -> None:
        tenant = Tenant(shared)
        try:
            with connection, suppress(ConnectionError):  # the front is gone
                serve(connection, tenant)
        finally:
            tenant.leave()

    while True:
        threading.Thread(target=serve_one, args=listening.accept()[:1], daemon=True).start()


def serve(connection: socket.socket, host: Host) -> None:
    """Answers what comes, one after the other; only bundles are loaded and dropped meanwhile, in a thread:
    where several fronts share them, either waits while another's is being loaded."""
    sending = threading.Lock()

    def answer(frame: Frame, operation: Callable[[Host, Frame], Answer]) -> None:
        try:
            header, arrays = operation(host, frame)
        except Exception as fault:
            header, arrays = fault_header(fault), {}
        header["id"] = frame.header["id"]
        with sending:
            connection.sendall(pack(header, arrays))

    with ThreadPoolExecutor(1, "loading") as loading:
        for frame in frames(connection):
            name = frame.header["do"]
            if name in MEANWHILE:
                loading.submit(answer, frame, MEANWHILE[name])
            else:
                answer(frame, OPERATIONS[name])


def frames(connection: socket.socket) -> Iterator[Frame]:
    """What comes, until the other end is closed, be that amid a frame."""
    while prefix := received(connection, PREFIX.size):
        sizes = lengths(prefix)
        head, body = (received(connection, size) for size in sizes)
        if (len(head), len(body)) == sizes:
            yield unpack(head, body)


def received(connection: socket.socket, size: int) -> bytearray:
    """Exactly so many bytes, which may be written to, as torch wants arrays to be; none where the connection
    ended."""
    whole = bytearray(size)
    filled = 0
    while filled < size:
        part = connection.recv_into(memoryview(whole)[filled:])
        if not part:
            return bytearray()
        filled += part
    return whole


def greet(host: Host, frame: Frame) -> Answer:
    return {"pid": os.getpid()}, {}


def load(host: Host, frame: Frame) -> Answer:
    host.load(frame.header["label"], Path(frame.header["folder"]))
    return {}, {}


def unload(host: Host, frame: Frame) -> Answer:
    host.unload(frame.header["label"])
    return {}, {}


def probe(host: Host, frame: Frame) -> Answer:
    host.probe()
    return {}, {}


def score(host: Host, frame: Frame) -> Answer:
    scored = host.measured(frame.header["label"], trie_of(frame.arrays), frame.header["only"])
    told = {
        "seconds": scored.seconds,
        "context_words": asdict(scored.context_words),
        "device_bytes": scored.device_bytes,
    }
    return told, score_arrays(scored.scores)


Operations = dict[str, Callable[[Host, Frame], Answer]]
OPERATIONS: Operations = {"greet": greet, "probe": probe, "score": score}
MEANWHILE: Operations = {"load": load, "unload": unload}

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:]))
