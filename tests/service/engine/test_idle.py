"""Streams, connections and messages that nobody continues end by a bound, and do not lock others out."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from rescorer.client import Client
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.types import Hypothesis, NBestList
from tests.support.http2 import (
    HEALTH_CHECK,
    HEALTH_WATCH,
    NO_WINDOW,
    RESCORE,
    RESCORE_STREAM,
    RawConnection,
    grpc_code,
    trailers_of,
)
from tests.support.servers import run_server, wait_until
from tests.support.stubs import expect_error, make_list_message
from tools.fuzz.http2 import DATA, PREFACE, frame

pytestmark = pytest.mark.slow

IDLE_S = 1.0
REFLECTION = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
UNAVAILABLE, DEADLINE_EXCEEDED, INVALID_ARGUMENT = 14, 4, 3
LIST = make_list_message(texts=["cat"] * 1000, values=[-1.0] * 1000)
MESSAGE = pb.RescoreStreamRequest(lists=[LIST]).SerializeToString()
"""About 15 KB, so that some fit into HTTP/2's first window; the answer has about ten times as much."""
SMALL = pb.RescoreStreamRequest(lists=[make_list_message()])


@pytest.fixture(scope="module")
def server(ngram_bundle):
    settings = {"max_idle_s": IDLE_S, "max_idle_connection_s": IDLE_S, "max_handshake_s": IDLE_S}
    with run_server(ngram_bundle, max_wait_s=2, **settings) as server:
        yield server


def n_streams(server) -> int:
    return server.server._service.streams.held


def test_an_idle_stream_ends_with_a_reason_and_can_be_opened_again(server):
    finish = threading.Event()

    def send_one_then_wait():
        yield SMALL
        finish.wait(20)

    with grpc.insecure_channel(server.target) as channel:
        stub = RescorerServiceStub(channel)
        for _ in range(2):
            responses = stub.RescoreStream(send_one_then_wait())
            assert len(next(responses).lists) == 1
            code, text, *_ = expect_error(lambda responses=responses: responses)
            assert code == grpc.StatusCode.UNAVAILABLE
            assert text == "the stream was idle for 1 s (max_idle_s); open it again to send more"
        finish.set()


def test_a_stream_with_pauses_below_the_bound_stays_open(server):
    def send_slowly():
        for _ in range(4):
            yield SMALL
            time.sleep(IDLE_S / 2)

    with grpc.insecure_channel(server.target) as channel:
        assert len(list(RescorerServiceStub(channel).RescoreStream(send_slowly()))) == 4


def test_a_stream_that_is_not_read_ends(server):
    with RawConnection(server.port, NO_WINDOW) as connection:
        stream = connection.call(RESCORE_STREAM, MESSAGE, MESSAGE, end=False)
        wait_until(lambda: n_streams(server) == 1)
        wait_until(lambda: n_streams(server) == 0)
        connection.grant(2**24, stream)  # a client that reads late gets what was written, and the reason
        frames = connection.read_until_end(stream)
        assert grpc_code(frames) == UNAVAILABLE
        assert "max_idle_s" in trailers_of(frames)


def test_a_watch_that_is_not_read_ends(server):
    with RawConnection(server.port, NO_WINDOW) as connection:
        connection.call(HEALTH_WATCH, HealthCheckRequest().SerializeToString())
        watches = server.server.health._watches
        wait_until(lambda: watches.held == 1)
        wait_until(lambda: watches.held == 0)


def test_a_request_that_does_not_arrive_ends(server):
    with RawConnection(server.port) as connection:
        stream = connection.call(RESCORE, end=False)
        connection.send(frame(DATA, 0, stream, b"\0\0\1\0\0half"))
        frames = connection.read_until_end(stream)
        assert grpc_code(frames) == DEADLINE_EXCEEDED
        assert "the request did not arrive within 2 s (max_wait_s)" in trailers_of(frames)


def test_a_call_without_a_message_is_refused(server):
    with RawConnection(server.port) as connection:
        frames = connection.read_until_end(connection.call(RESCORE, end=True))
        assert grpc_code(frames) == INVALID_ARGUMENT


@pytest.mark.parametrize("path", [HEALTH_CHECK, HEALTH_WATCH, REFLECTION])
def test_a_message_that_cannot_be_decoded_is_refused_without_an_exception(server, path):
    with RawConnection(server.port) as connection:
        frames = connection.read_until_end(connection.call(path, b"\xff\xff\xff"))
        assert grpc_code(frames) == INVALID_ARGUMENT
        assert "the request cannot be decoded" in trailers_of(frames)


def test_an_idle_reflection_stream_ends(server):
    finish = threading.Event()

    def ask_one_then_wait():
        yield ServerReflectionRequest(list_services="")
        finish.wait(20)

    with grpc.insecure_channel(server.target) as channel:
        answers = list(ServerReflectionStub(channel).ServerReflectionInfo(ask_one_then_wait()))
        finish.set()
    names = [service.name for service in answers[0].list_services_response.service]
    assert reflection.SERVICE_NAME in names


def test_connections_without_calls_or_handshake_are_closed(server):
    with ExitStack() as stack:
        idle = stack.enter_context(RawConnection(server.port))
        silent = stack.enter_context(RawConnection(server.port, handshake=False))
        half = stack.enter_context(RawConnection(server.port, handshake=False))
        half.send(PREFACE[:10])
        assert [connection.is_closed() for connection in (idle, silent, half)] == [True] * 3


def test_a_client_notices_nothing_of_closed_idle_connections(server):
    nbest = NBestList("u1", (Hypothesis("the cat"),), {"acoustic": (-1.0,)})
    with Client(server.target) as client:
        for _ in range(2):
            assert client.rescore([nbest])[0].id == "u1"
            time.sleep(2.5 * IDLE_S)


def test_idle_streams_of_few_connections_do_not_lock_others_out(ngram_bundle):
    with run_server(ngram_bundle) as server, ExitStack() as stack:
        greedy = [stack.enter_context(RawConnection(server.port)) for _ in range(4)]
        for connection in greedy:
            for _ in range(64):
                connection.call(RESCORE_STREAM, end=False)
        wait_until(lambda: n_streams(server) == 256)
        channels = [stack.enter_context(grpc.insecure_channel(server.target)) for _ in range(10)]
        for channel in channels:
            assert len(list(RescorerServiceStub(channel).RescoreStream(iter([SMALL])))) == 1
        wait_until(lambda: n_streams(server) <= 256)


def test_busy_streams_keep_their_places(bundle):
    with run_server(bundle, max_streams=2) as server, ExitStack() as stack:
        server.scorer.gate.clear()
        first, second = (stack.enter_context(grpc.insecure_channel(server.target)) for _ in range(2))
        busy = [RescorerServiceStub(first).RescoreStream(iter([SMALL])) for _ in range(2)]
        wait_until(lambda: server.in_flight == 2)
        refused = RescorerServiceStub(second).RescoreStream(iter([SMALL]))
        code, text, *_ = expect_error(lambda: refused)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_streams" in text
        server.scorer.gate.set()
        assert [len(list(responses)) for responses in busy] == [1, 1]
