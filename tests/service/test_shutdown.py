"""A server stops within its grace time, whatever its peers do."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from rescorer.protocol.v1 import rescorer_pb2 as pb
from tests.support.http2 import (
    HEALTH_WATCH,
    NO_WINDOW,
    RESCORE,
    RESCORE_STREAM,
    SCORE_TEXT,
    RawConnection,
)
from tests.support.serve_command import run_serve_command
from tests.support.stubs import make_list_message
from tools.fuzz.http2 import DATA, HEADERS, PREFACE, frame

pytestmark = pytest.mark.slow

GRACE_S = 1.0
MARGIN_S = 8.0
"""What a slow machine may take beyond the grace time; a server that hangs takes for ever."""

LIST = make_list_message(texts=["cat"] * 1000, values=[-1.0] * 1000)
"""About 15 KB, so that some fit into HTTP/2's first window; the answer has about ten times as much."""
WATCH = HealthCheckRequest().SerializeToString()
UNARY = pb.RescoreRequest(lists=[LIST]).SerializeToString()
MESSAGE = pb.RescoreStreamRequest(lists=[LIST]).SerializeToString()
TEXTS = pb.ScoreTextRequest(texts=["the cat sat"] * 500).SerializeToString()


def unread_watches(port: int) -> RawConnection:
    connection = RawConnection(port, NO_WINDOW)
    for _ in range(3):
        connection.call(HEALTH_WATCH, WATCH)
    return connection


def unread_answers(port: int) -> RawConnection:
    connection = RawConnection(port, NO_WINDOW)
    for _ in range(5):
        connection.call(RESCORE, UNARY)
        connection.call(SCORE_TEXT, TEXTS)
    return connection


def unread_streams(port: int) -> RawConnection:
    connection = RawConnection(port, NO_WINDOW)
    for _ in range(3):
        connection.call(RESCORE_STREAM, *[MESSAGE] * 3, end=False)
    return connection


def unread_socket(port: int) -> RawConnection:
    """Grant a large window, but never read, so that the kernel's buffers fill."""
    connection = RawConnection(port, {4: 2**31 - 1}, receive_buffer_bytes=4096)
    connection.grant(2**30)
    for _ in range(5):
        connection.call(RESCORE, UNARY)
        connection.call(RESCORE_STREAM, *[MESSAGE] * 3, end=False)
    return connection


def idle_streams(port: int) -> RawConnection:
    connection = RawConnection(port)
    for _ in range(20):
        connection.call(RESCORE_STREAM, end=False)
    return connection


def half_sent_message(port: int) -> RawConnection:
    connection = RawConnection(port)
    connection.call(RESCORE, end=False)
    connection.send(frame(DATA, 0, 1, b"\0\0\1\0\0half"))
    return connection


def half_sent_headers(port: int) -> RawConnection:
    connection = RawConnection(port)
    connection.send(frame(HEADERS, 0, 1, b"", length=100))
    return connection


def silent(port: int) -> RawConnection:
    return RawConnection(port, handshake=False)


def half_handshake(port: int) -> RawConnection:
    connection = RawConnection(port, handshake=False)
    connection.send(PREFACE[:10])
    return connection


def half_closed(port: int) -> RawConnection:
    connection = RawConnection(port)
    connection.call(HEALTH_WATCH, WATCH)
    connection.socket.shutdown(1)
    return connection


PEERS = (
    unread_watches,
    unread_answers,
    unread_streams,
    unread_socket,
    idle_streams,
    half_sent_message,
    half_sent_headers,
    silent,
    half_handshake,
    half_closed,
)


@pytest.mark.parametrize("front_ends", [1, 2])
def test_stops_within_the_grace_time_whatever_peers_do(ngram_bundle, tmp_path, front_ends):
    options = ("--grace-s", str(GRACE_S), "--front-ends", str(front_ends), "--metrics-port", "0")
    with run_serve_command(ngram_bundle, tmp_path, *options) as (process, _), ExitStack() as stack:
        port = int((tmp_path / "port").read_text())
        for open_connection in PEERS:
            for _ in range(front_ends):
                stack.enter_context(open_connection(port))
        time.sleep(1)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert time.monotonic() - began < GRACE_S + MARGIN_S


def test_stops_within_the_grace_time_although_the_trace_collector_hangs(ngram_bundle, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as collector:  # accepts connections and never answers
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        options = ("--grace-s", str(GRACE_S), "--trace-endpoint", endpoint)
        with run_serve_command(ngram_bundle, tmp_path, *options) as (process, client):
            client.score_text(["the cat"])
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert time.monotonic() - began < GRACE_S + MARGIN_S


def test_a_busy_thread_does_not_delay_the_exit():
    script = (
        "import time; from concurrent.futures import ThreadPoolExecutor\n"
        "from rescorer.service.server import end_process_within\n"
        "ThreadPoolExecutor().submit(time.sleep, 60); end_process_within(0.5)"
    )
    began = time.monotonic()
    assert subprocess.run((sys.executable, "-c", script), timeout=60, check=False).returncode == 0
    assert time.monotonic() - began < 30
