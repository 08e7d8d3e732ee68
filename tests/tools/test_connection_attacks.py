"""Connections that attack the transport affect no call on another connection."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from itertools import islice

import pytest

from rescorer.client import NO_RETRY, Client
from tests.support.clients import make_list
from tests.support.servers import run_server
from tools.fuzz.connections import ATTACKS, OPENING
from tools.fuzz.http2 import ACK, SETTINGS, frame

pytestmark = pytest.mark.slow

N_CONNECTIONS, N_PARTS = 2, 10


@pytest.fixture(scope="module")
def server(ngram_bundle):
    with run_server(ngram_bundle, grace_s=0.1) as running_server:
        yield running_server


def begin_attack(name: str, connection: socket.socket) -> None:
    """Send the beginning of an attack; the server may close the connection before its end."""
    with suppress(OSError):
        for part in islice(ATTACKS[name].parts(), N_PARTS):
            connection.sendall(part)
            if part.startswith(OPENING):
                connection.recv(9)
                connection.sendall(frame(SETTINGS, ACK, 0))


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_the_transport_do_not_affect_other_connections(server, name):
    with ExitStack() as stack, Client(server.target, retry=NO_RETRY) as client:
        client.wait_ready(10)
        for _ in range(N_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            begin_attack(name, connection)
            assert [answer.id for answer in client.rescore([make_list()])] == ["u1"]
    with Client(server.target, retry=NO_RETRY) as client:
        assert [answer.id for answer in client.rescore([make_list()])] == ["u1"]
