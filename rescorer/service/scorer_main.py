"""Owns the process that scores: it answers frames on the socket it was born with until that is closed.

    python -m rescorer.service.scorer_main SOCKET DEVICE THREADS DTYPE CONTEXT_CACHE_BYTES

Signals to stop are the server's business: this process ends when the server closes the socket or is gone.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rescorer.errors import RescorerError
from rescorer.lm.memory import keep_freed_memory
from rescorer.pipeline import Rescorer
from rescorer.service.frames import PREFIX, Arrays, Frame, lengths, pack, score_arrays, trie_of, unpack
from rescorer.service.model_host import ModelHost

Answer = tuple[dict[str, Any], Arrays]


def main(descriptor: int, device: str, threads: int, dtype: str, context_cache_bytes: int) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    keep_freed_memory()
    with socket.socket(fileno=descriptor) as connection, suppress(ConnectionError):  # the server is gone
        load = partial(Rescorer.load, dtype=dtype, context_cache_bytes=context_cache_bytes)
        serve(connection, ModelHost(device, threads, load))


def serve(connection: socket.socket, host: ModelHost) -> None:
    """Answers what comes, one after the other; only a bundle is loaded meanwhile, in a thread."""
    sending = threading.Lock()

    def answer(frame: Frame, operation: Callable[[ModelHost, Frame], Answer]) -> None:
        try:
            header, arrays = operation(host, frame)
        except Exception as fault:
            kind = type(fault).__name__ if isinstance(fault, RescorerError) else "ScoringError"
            header, arrays = {"fault": kind, "message": f"{type(fault).__name__}: {fault}"}, {}
            if isinstance(fault, RescorerError):
                header["message"] = str(fault)
        header["id"] = frame.header["id"]
        with sending:
            connection.sendall(pack(header, arrays))

    with ThreadPoolExecutor(1, "loading") as loading:
        for frame in frames(connection):
            name = frame.header["do"]
            if name == "load":
                loading.submit(answer, frame, load)
            else:
                answer(frame, OPERATIONS[name])


def frames(connection: socket.socket) -> Iterator[Frame]:
    """What comes, until the other end is closed."""
    while prefix := received(connection, PREFIX.size):
        head_bytes, body_bytes = lengths(prefix)
        yield unpack(received(connection, head_bytes), received(connection, body_bytes))


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


def load(host: ModelHost, frame: Frame) -> Answer:
    host.load(frame.header["label"], Path(frame.header["folder"]))
    return {}, {}


def unload(host: ModelHost, frame: Frame) -> Answer:
    host.unload(frame.header["label"])
    return {}, {}


def probe(host: ModelHost, frame: Frame) -> Answer:
    host.probe()
    return {}, {}


def score(host: ModelHost, frame: Frame) -> Answer:
    scored = host.measured(frame.header["label"], trie_of(frame.arrays), frame.header["only"])
    told = {
        "seconds": scored.seconds,
        "context_words": asdict(scored.context_words),
        "device_bytes": scored.device_bytes,
    }
    return told, score_arrays(scored.scores)


OPERATIONS: dict[str, Callable[[ModelHost, Frame], Answer]] = {
    "unload": unload,
    "probe": probe,
    "score": score,
}

if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
