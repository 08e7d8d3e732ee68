"""Conversations in broken HTTP/2: whatever is said on one connection, calls on others are answered."""

from __future__ import annotations

import random
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from rescorer import RescoredList
from rescorer.client import NO_RETRY, Client
from tests.support.clients import make_list
from tests.support.servers import run_server, wait_until
from tests.support.tiny_models import write_bundle
from tools.fuzz.http2 import (
    BREAKERS,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    conversation,
    frame,
    request_headers,
)

PATH = b"/rescorer.v1.RescorerService/Rescore"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("ngram"), neural=False)


@pytest.fixture(scope="module")
def server(folder):
    with run_server(folder) as made:
        yield made


def say(port: int, what: bytes) -> bytes:
    """What is answered within a tenth of a second."""
    heard = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(0.1)
        connection.sendall(what)
        while part := connection.recv(100_000):
            heard += part
    return heard


def test_a_good_conversation_is_answered(server):
    assert b"grpc-status" in say(server.port, b"".join(conversation(PATH, b"")))


@pytest.mark.parametrize("breaker", sorted(set(BREAKERS), key=lambda each: each.__name__))
def test_a_broken_conversation_is_no_concern_of_others(server, breaker):
    with Client(server.target) as client:
        for seed in range(8):
            say(server.port, breaker(PATH, b"\x0a\x03abc", random.Random(seed)))
        assert isinstance(client.rescore([make_list()])[0], RescoredList)


def test_a_path_that_is_not_utf_8_ends_neither_the_server_nor_calls_of_others(server):
    with Client(server.target) as client:
        client.wait_ready(10)
        server.scorer.gate.clear()
        server.scorer.entered.clear()
        with ThreadPoolExecutor(1) as caller:
            call = caller.submit(client.rescore, [make_list()])
            assert server.scorer.entered.wait(10)
            say(server.port, b"".join(conversation(b"/\xe5", b"")))
            server.scorer.gate.set()
            assert [each.id for each in call.result(20)] == ["u1"]
        assert b"grpc-status" in say(server.port, b"".join(conversation(PATH, b"")))
        assert b"Method not found" in say(server.port, b"".join(conversation(b"/\xe5", b"")))
        wait_until(lambda: server.in_flight == 0)


def resets(count: int) -> bytes:
    """So many calls opened and reset at once, each of which costs the server more than a client."""
    block, end_headers, cancel = request_headers(PATH), 4, (8).to_bytes(4, "big")
    opened = (
        frame(HEADERS, end_headers, number, block) + frame(RST_STREAM, 0, number, cancel)
        for number in range(1, 2 * count, 2)
    )
    return b"".join((PREFACE, frame(SETTINGS, 0, 0), *opened))


def test_a_connection_has_only_so_many_calls_open_whether_or_not_it_has_reset_them(folder):
    """Each took 10 to 15 KB until it was looked at, and floods hundreds of MB that the process then kept."""
    refused = re.compile(rb"\x00\x00\x04\x03\x00.{4}\x00\x00\x00\x0b", re.DOTALL)  # RST_STREAM: be calm
    with run_server(folder, max_client_lists=4, max_client_streams=4) as server:
        bound = server.server._settings.connection_calls
        assert not refused.search(say(server.port, resets(bound // 2)))
        assert refused.search(say(server.port, resets(3000)))
        with Client(server.target) as client:
            assert isinstance(client.rescore([make_list()])[0], RescoredList)


def test_streams_opened_and_reset_by_the_thousand_do_not_cancel_calls_of_others(server):
    """From 1,000 calls waiting on, gRPC dropped some of them, whoever sent them."""
    flood = resets(3000)
    with Client(server.target, retry=NO_RETRY) as client, ThreadPoolExecutor(4) as flooders:
        client.wait_ready(10)
        floods = [flooders.submit(say, server.port, flood) for _ in range(12)]
        while not all(each.done() for each in floods):
            assert [each.id for each in client.rescore([make_list()])] == ["u1"]
