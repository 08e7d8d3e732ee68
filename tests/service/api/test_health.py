"""The gRPC health service: its protocol, and watchers that do not read or are too many."""

from __future__ import annotations

import time

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer.client import Client
from rescorer.protocol.messages import LIVENESS
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.server import SERVICE
from tests.support.http2 import (
    DATA,
    HEALTH_WATCH,
    NO_WINDOW,
    RawConnection,
    grpc_code,
    trailers_of,
)
from tests.support.servers import run_server
from tests.support.stubs import NOT_SERVING, SERVING, expect_error, make_list_message

pytestmark = pytest.mark.slow

SERVICE_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN
SOON_S = 10.0
"""More than anything here takes on a slow machine, and less than for ever."""


def read_watch(connection: RawConnection, stream: int) -> list[int]:
    """Return the statuses that one Watch has sent so far."""
    sent = [read.payload for read in connection.frames if (read.kind, read.stream) == (DATA, stream)]
    return [HealthCheckResponse.FromString(payload[5:]).status for payload in sent]


def test_a_watch_that_is_not_read_hinders_nobody(ngram_bundle):
    with (
        run_server(ngram_bundle, load=False, grace_s=1) as server,
        RawConnection(server.port, NO_WINDOW) as unread,
        grpc.insecure_channel(server.target) as channel,
    ):
        for service in ("", SERVICE, "unknown"):
            unread.call(HEALTH_WATCH, HealthCheckRequest(service=service).SerializeToString())
        unread.acknowledge_settings()
        time.sleep(0.5)  # the watches are waiting for the client
        health, stub = HealthStub(channel), RescorerServiceStub(channel)
        states = health.Watch(HealthCheckRequest(service=SERVICE), timeout=SOON_S)
        assert next(states).status == NOT_SERVING
        server.submit(server.server.load()).result(SOON_S)
        assert next(states).status == SERVING
        assert health.Check(HealthCheckRequest(service=SERVICE), timeout=SOON_S).status == SERVING
        with Client(server.target) as client:
            client.wait_ready(SOON_S)
        request = pb.RescoreRequest(lists=[make_list_message()])
        assert stub.Rescore(request, timeout=SOON_S).lists[0].status.code == 0
        began = time.monotonic()
        server.submit(server.server.stop()).result(SOON_S)
        assert time.monotonic() - began < 5


def test_a_watch_that_reads_late_gets_the_latest_status_only(ngram_bundle):
    with run_server(ngram_bundle, load=False) as server, RawConnection(server.port, NO_WINDOW) as late:
        stream = late.call(HEALTH_WATCH, HealthCheckRequest().SerializeToString())
        time.sleep(0.3)
        server.load()
        for status in (NOT_SERVING, SERVING) * 20:
            server.run(set_status(server, status))
        late.grant(100_000, stream)
        while read_watch(late, stream)[-1:] != [SERVING]:
            assert late.read(SOON_S) is not None
        assert len(read_watch(late, stream)) <= 3


async def set_status(server, status):
    server.server.health.set(status)


def test_check_watch_and_list_follow_the_health_protocol(ngram_bundle):
    with run_server(ngram_bundle) as server, grpc.insecure_channel(server.target) as channel:
        health = HealthStub(channel)
        for service in (names := ("", SERVICE, LIVENESS)):
            assert health.Check(HealthCheckRequest(service=service)).status == SERVING
        code, text, *_ = expect_error(health.Check.with_call, HealthCheckRequest(service="other"))
        assert code == grpc.StatusCode.NOT_FOUND
        assert f"expected '' or '{SERVICE}' or '{LIVENESS}'" in text
        listed = health.List(HealthListRequest()).statuses
        assert {name: state.status for name, state in listed.items()} == dict.fromkeys(names, SERVING)
        unknown = health.Watch(HealthCheckRequest(service="other"), timeout=1)
        assert next(unknown).status == SERVICE_UNKNOWN
        # The stream stays open although nothing is sent.
        assert expect_error(lambda: unknown)[0] == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_stopping_server_is_not_serving_whatever_is_set_afterwards(ngram_bundle):
    with run_server(ngram_bundle) as server, grpc.insecure_channel(server.target) as channel:
        health = HealthStub(channel)
        watches = [health.Watch(HealthCheckRequest(service=name), timeout=20) for name in ("", SERVICE)]
        assert [next(watch).status for watch in watches] == [SERVING, SERVING]

        async def begin_shutdown_then_set() -> None:
            server.server.health.begin_shutdown()
            server.server.health.set(SERVING)

        server.run(begin_shutdown_then_set())
        assert [next(watch).status for watch in watches] == [NOT_SERVING, NOT_SERVING]
        assert health.Check(HealthCheckRequest(), timeout=20).status == NOT_SERVING
        # It still answers, so nothing should kill it before it has stopped.
        assert health.Check(HealthCheckRequest(service=LIVENESS), timeout=20).status == SERVING


def test_a_connection_has_a_bounded_number_of_watches(ngram_bundle):
    settings = {"max_watches": 6, "max_client_watches": 4}
    with run_server(ngram_bundle, **settings) as server, RawConnection(server.port) as greedy:
        request = HealthCheckRequest().SerializeToString()
        for _ in range(4):
            greedy.call(HEALTH_WATCH, request)
        refused = greedy.read_until_end(greedy.call(HEALTH_WATCH, request))
        assert grpc_code(refused) == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert "max_client_watches" in trailers_of(refused)


def test_watches_of_few_connections_do_not_lock_others_out(ngram_bundle):
    settings = {"max_watches": 6, "max_client_watches": 4}
    with run_server(ngram_bundle, **settings) as server:
        greedy = [RawConnection(server.port, NO_WINDOW) for _ in range(2)]
        for connection in greedy:
            for _ in range(4):
                connection.call(HEALTH_WATCH, HealthCheckRequest().SerializeToString())
        time.sleep(0.5)
        with grpc.insecure_channel(server.target) as channel:
            states = HealthStub(channel).Watch(HealthCheckRequest(), timeout=SOON_S)
            assert next(states).status == SERVING
        for connection in greedy:
            connection.close()
