"""The HTTP port of the metrics: formats, refusals, and connections that do nothing."""

from __future__ import annotations

import gzip
import http.client
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from rescorer.service import metrics
from tests.support.prometheus import get_value, read_samples
from tests.support.servers import run_server, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(ngram_bundle):
    with run_server(ngram_bundle, metrics_port=0) as server:
        yield server


@pytest.fixture
def port(server):
    return server.server.metrics_port


def ask(port: int, method: str, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    response = connection.getresponse()
    return response.status, response.headers, response.read()


def send_raw(port: int, data: bytes) -> bytes:
    """Send bytes and return everything that is answered until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        received = b""
        while more := connection.recv(65_536):
            received += more
    return received


def test_the_format_is_negotiated(port):
    code, headers, body = ask(port, "GET", "/metrics")
    assert (code, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert int(headers["Content-Length"]) == len(body)
    assert b"\nrescorer_ready 1.0\n" in body
    _, headers, body = ask(port, "GET", "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    _, headers, body = ask(port, "GET", "/metrics", Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert b"\nrescorer_ready 1.0\n" in gzip.decompress(body)
    _, _, body = ask(port, "GET", "/metrics?name[]=rescorer_ready")
    assert [line for line in body.splitlines() if not line.startswith(b"#")] == [b"rescorer_ready 1.0"]


def test_other_methods_and_paths(port):
    code, headers, body = ask(port, "HEAD", "/metrics")
    assert (code, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000
    assert ask(port, "GET", "/")[0] == 200
    assert ask(port, "GET", "/other")[0] == 404
    code, headers, _ = ask(port, "POST", "/metrics")
    assert (code, headers["Allow"]) == (405, "OPTIONS,GET")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 5_000, 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
    ids=["long line", "many headers", "no HTTP", "no header", "TLS"],
)
def test_refuses_what_is_not_a_request(port, data, code):
    assert send_raw(port, data).startswith(b"HTTP/1.1 %d " % code)


def test_idle_connections_take_no_threads_and_keep_nobody_out(server, port):
    threads = threading.active_count()
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        assert get_value(read_samples(port), "ready") == 1
        assert threading.active_count() <= threads + 2
        wait_until(lambda: len(server.server._endpoint._connections) <= metrics.MAX_CONNECTIONS)


def test_slow_connections_end(server, port, monkeypatch):
    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(metrics, "RESPONSE_TIMEOUT_S", 0.5)
    began = time.monotonic()
    assert send_raw(port, b"GET /metrics HTTP/1.1\r\n").startswith(b"HTTP/1.1 408 ")
    with socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        unread.connect(("127.0.0.1", port))
        unread.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_until(lambda: not server.server._endpoint._connections)
    assert time.monotonic() - began < 10


def test_an_endpoint_with_open_connections_stops(ngram_bundle):
    with run_server(ngram_bundle, metrics_port=0) as server, ExitStack() as stack:
        for _ in range(20):
            address = ("127.0.0.1", server.server.metrics_port)
            stack.enter_context(socket.create_connection(address, timeout=10))
        began = time.monotonic()
        server.run(server.server.stop())
        assert time.monotonic() - began < 10
