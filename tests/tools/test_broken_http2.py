"""Malformed HTTP/2 on one connection must not affect calls on other connections."""

from __future__ import annotations

import random
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from rescorer.client import NO_RETRY, Client
from tests.support.clients import make_list
from tests.support.servers import run_server, wait_until
from tests.support.tiny_models import write_bundle
from tools.fuzz.http2 import (
    HEADERS,
    MALFORMATIONS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    request_headers,
    valid_connection,
)

pytestmark = pytest.mark.slow

PATH = b"/rescorer.v1.RescorerService/Rescore"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("ngram"), neural=False)


@pytest.fixture(scope="module")
def server(folder):
    with run_server(folder) as running_server:
        yield running_server


def exchange(port: int, data: bytes) -> bytes:
    """Send bytes over a new connection; return what the server sends until it pauses for 0.1 s."""
    received = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(0.1)
        connection.sendall(data)
        while part := connection.recv(100_000):
            received += part
    return received


def test_answers_a_valid_connection(server):
    assert b"grpc-status" in exchange(server.port, b"".join(valid_connection(PATH, b"")))


@pytest.mark.parametrize("malformation", sorted(set(MALFORMATIONS), key=lambda function: function.__name__))
def test_malformed_connection_does_not_affect_other_calls(server, malformation):
    with Client(server.target) as client:
        for seed in range(8):
            exchange(server.port, malformation(PATH, b"\x0a\x03abc", random.Random(seed)))
        assert client.rescore([make_list()])[0].id == "u1"


def test_path_that_is_not_utf_8_does_not_affect_other_calls(server):
    with Client(server.target) as client:
        client.wait_ready(10)
        server.scorer.gate.clear()
        server.scorer.entered.clear()
        with ThreadPoolExecutor(1) as caller:
            call = caller.submit(client.rescore, [make_list()])
            assert server.scorer.entered.wait(10)
            exchange(server.port, b"".join(valid_connection(b"/\xe5", b"")))
            server.scorer.gate.set()
            assert [answer.id for answer in call.result(20)] == ["u1"]
        assert b"grpc-status" in exchange(server.port, b"".join(valid_connection(PATH, b"")))
        assert b"Method not found" in exchange(server.port, b"".join(valid_connection(b"/\xe5", b"")))
        wait_until(lambda: server.in_flight == 0)


def reset_calls(count: int) -> bytes:
    """Open and reset calls on one connection, each of which costs the server more than the client."""
    block, end_headers, cancel = request_headers(PATH), 4, (8).to_bytes(4, "big")
    frames = (
        frame(HEADERS, end_headers, number, block) + frame(RST_STREAM, 0, number, cancel)
        for number in range(1, 2 * count, 2)
    )
    return b"".join((PREFACE, frame(SETTINGS, 0, 0), *frames))


def test_limits_open_calls_per_connection_even_if_they_are_reset(folder):
    """Each call takes 10 to 15 KB until it is handled; without a limit, floods took hundreds of MB."""
    # RST_STREAM with ENHANCE_YOUR_CALM
    refusal = re.compile(rb"\x00\x00\x04\x03\x00.{4}\x00\x00\x00\x0b", re.DOTALL)
    with run_server(folder, max_client_lists=4, max_client_streams=4) as server:
        limit = server.server.settings.max_calls_per_connection
        assert not refusal.search(exchange(server.port, reset_calls(limit // 2)))
        assert refusal.search(exchange(server.port, reset_calls(3000)))
        with Client(server.target) as client:
            assert client.rescore([make_list()])[0].id == "u1"


def test_floods_of_reset_calls_do_not_cancel_other_calls(server):
    """With 1,000 calls waiting, gRPC used to drop calls of any client."""
    flood = reset_calls(3000)
    with Client(server.target, retry=NO_RETRY) as client, ThreadPoolExecutor(4) as flooders:
        client.wait_ready(10)
        floods = [flooders.submit(exchange, server.port, flood) for _ in range(12)]
        while not all(flood.done() for flood in floods):
            assert [answer.id for answer in client.rescore([make_list()])] == ["u1"]
