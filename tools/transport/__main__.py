"""Measure round trips of a batch's trie and scores: our frames against grpc.aio over a Unix socket.

    python -m tools.transport [--blocks 12]

Both workers unpack the trie and answer with constant scores of two models. Blocks alternate between the two
transports; the table shows medians over the blocks of wall time and of the processor time of both ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from rescorer.lm.base import EdgeScores
from rescorer.service.workers import ipc, trie_arrays
from rescorer.trie import HypothesisTrie, build_trie

SIZES = ((1, 300), (10, 60))
"""Pairs of lists per batch and round trips per block."""
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
REQUEST = {"do": "score", "label": "m/1", "only": [], "encode": []}
RoundTrip = Callable[[HypothesisTrie], Awaitable[object]]


def make_trie(n_lists: int) -> HypothesisTrie:
    """Build the trie of lists of 100 hypotheses of 15 words that differ at three positions."""
    rng, vocabulary, hypotheses = random.Random(1), [f"word{i}" for i in range(3000)], []
    for _ in range(n_lists):
        spoken = [rng.choice(vocabulary) for _ in range(15)]
        for _ in range(100):
            words = list(spoken)
            for _ in range(3):
                words[rng.randrange(15)] = rng.choice(vocabulary)
            hypotheses.append(tuple(words))
    return build_trie(hypotheses)


def answer(frame: ipc.Frame) -> bytes:
    """Answer a request with constant scores of two models."""
    trie = trie_arrays.unpack_trie(frame.arrays)
    scores = EdgeScores(np.zeros(trie.n_edges), np.zeros(trie.n_edges, dtype=bool))
    header = {"id": frame.header["id"], "seconds": {}, "context_words": {}, "device_bytes": {}}
    return bytes(ipc.pack(header, trie_arrays.pack_scores({"ngram": scores, "neural": scores})))


def unpack(message: bytes) -> ipc.Frame:
    head, _ = ipc.parse_prefix(message[: ipc.PREFIX.size])
    begin = ipc.PREFIX.size
    return ipc.unpack(message[begin : begin + head], message[begin + head :])


def serve_frames(descriptor: int) -> None:
    """Answer frames on a socket until it is closed."""
    from rescorer.service.workers.ipc import read_frames

    with socket.socket(fileno=descriptor) as connection:
        for frame in read_frames(connection):
            connection.sendall(answer(frame))


async def serve_grpc(path: str) -> None:
    """Answer the same messages as calls of a generic gRPC method."""

    async def score(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return answer(unpack(request))

    server = grpc.aio.server(options=OPTIONS)
    method: Any = grpc.unary_unary_rpc_method_handler(score)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("w.Worker", {"Score": method}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def time_block(round_trip: RoundTrip, trie: HypothesisTrie, n: int, pid: int) -> tuple[float, ...]:
    """Return wall, client and worker milliseconds per round trip."""
    worker, client, wall = cpu_seconds(pid), time.process_time(), time.perf_counter()
    for _ in range(n):
        await round_trip(trie)
    seconds = time.perf_counter() - wall, time.process_time() - client, cpu_seconds(pid) - worker
    return tuple(value / n * 1e3 for value in seconds)


async def compare(n_blocks: int) -> None:
    """Start both workers and print the table."""
    path, module = tempfile.mktemp(prefix="rescorer-"), [sys.executable, "-m", "tools.transport"]
    ours, theirs = socket.socketpair()
    with theirs:
        command = [*module, "--frames", str(theirs.fileno())]
        frame_worker = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    grpc_worker = subprocess.Popen([*module, "--grpc", path], stdout=subprocess.PIPE, text=True)
    try:
        assert grpc_worker.stdout is not None
        grpc_worker.stdout.readline()  # it listens
        peer = ipc.Peer(*await asyncio.open_connection(sock=ours))
        call: Any = grpc.aio.insecure_channel(f"unix:{path}", options=OPTIONS).unary_unary("/w.Worker/Score")

        async def by_frames(trie: HypothesisTrie) -> object:
            return trie_arrays.unpack_scores((await peer.ask(REQUEST, trie_arrays.pack_trie(trie))).arrays)

        async def by_grpc(trie: HypothesisTrie) -> object:
            message = bytes(ipc.pack({**REQUEST, "id": 1}, trie_arrays.pack_trie(trie)))
            return trie_arrays.unpack_scores(unpack(await call(message)).arrays)

        pairs = (("frames", by_frames, frame_worker.pid), ("grpc.aio", by_grpc, grpc_worker.pid))
        print(f"{'lists':>5} {'transport':<10} {'wall ms':>8} {'client CPU ms':>14} {'worker CPU ms':>14}")
        for n_lists, n in SIZES:
            trie = make_trie(n_lists)
            blocks: dict[str, list[tuple[float, ...]]] = {name: [] for name, _, _ in pairs}
            for _ in range(n_blocks):
                for name, round_trip, pid in pairs:
                    blocks[name].append(await time_block(round_trip, trie, n, pid))
            for name, values in blocks.items():
                wall, client, worker = (statistics.median(column) for column in zip(*values, strict=True))
                print(f"{n_lists:>5} {name:<10} {wall:>8.3f} {client:>14.3f} {worker:>14.3f}")
    finally:
        frame_worker.kill()
        grpc_worker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12, help="blocks of round trips per transport")
    parser.add_argument("--frames", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--grpc", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.frames is not None:
        serve_frames(options.frames)
    elif options.grpc is not None:
        asyncio.run(serve_grpc(options.grpc))
    else:
        asyncio.run(compare(options.blocks))


if __name__ == "__main__":
    main()
