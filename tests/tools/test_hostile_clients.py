"""A hostile client hinders neither the calls of others nor their health checks, nor the server's stop."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

import grpc
import pytest

from rescorer.client import NO_RETRY, Client
from rescorer.protocol.messages import list_to_proto
from tests.support.clients import make_list
from tests.support.http2 import RESCORE
from tests.support.servers import run_server
from tools.fuzz.http2 import CONNECTIONS, REQUESTS

# gRPC's generators of streams that are open when the loop of the test ends are collected only later.
IGNORE_LATE_GENERATORS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
pytestmark = [pytest.mark.slow, IGNORE_LATE_GENERATORS]

N_CONNECTIONS = 4


@pytest.mark.parametrize("attack", CONNECTIONS, ids=lambda attack: attack.__name__)
def test_others_are_served_while_hostile_clients_are_connected(attack, ngram_bundle):
    rng = random.Random(1)
    with ExitStack() as stack, run_server(ngram_bundle, grace_s=2) as server:  # stops before they disconnect
        for _ in range(N_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            with suppress(OSError):  # the server may refuse to read on
                connection.sendall(attack(list_to_proto(make_list()), rng))
        client = stack.enter_context(Client(server.target, retry=NO_RETRY))
        client.wait_ready(10)
        assert client.rescore([make_list()], timeout_s=10)[0].id == make_list().id


@pytest.mark.parametrize("attack", REQUESTS, ids=lambda attack: attack.__name__)
def test_requests_for_too_much_are_answered_or_refused(attack, ngram_bundle):
    rng = random.Random(1)
    options = [("grpc.max_receive_message_length", -1)]
    with run_server(ngram_bundle) as server, grpc.insecure_channel(server.target, options) as channel:
        send = channel.unary_unary(RESCORE)
        codes = set()
        for _ in range(20):
            try:
                send(attack(list_to_proto(make_list()), rng), timeout=60)
            except grpc.RpcError as error:
                codes.add(error.code())
        refusals = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
        assert codes <= refusals
