"""Answers that clients do not read, and requests that wait for a turn: their memory counts as in flight.

It is bounded, and freed in time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import pytest

from rescorer.client import Client
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.engine.client_limits import CALL_BYTES
from rescorer.service.engine.offloader import Turns
from rescorer.service.metrics import resident_bytes
from tests.support.http2 import (
    DATA,
    NO_WINDOW,
    RESCORE,
    RESCORE_STREAM,
    RawConnection,
    grpc_code,
)
from tests.support.serve_command import run_serve_command
from tests.support.servers import run_server, wait_until
from tests.support.stubs import make_list_message

pytestmark = pytest.mark.slow

SMALL_LIMITS = {
    "max_message_bytes": 65_536,
    "max_response_bytes": 400_000,
    "max_in_flight_bytes": 1_500_000,
    "max_client_bytes": 1_000_000,
}
LARGE = pb.RescoreRequest(lists=[make_list_message(texts=[f"the cat {i}" for i in range(1000)])])
"""Request whose answer has about 200 KB."""
SMALL = pb.RescoreRequest(lists=[make_list_message()])


def test_memory_of_unread_answers_is_bounded(ngram_bundle, tmp_path):
    """200 unread answers took the front end from 86 to 751 MB."""
    names = [f"{i}" + "n" * 700 for i in range(3)]
    request = pb.RescoreRequest(lists=[make_list_message(texts=[f"the {i}" for i in range(1000)])])
    for name in names:
        request.lists[0].streams.add(name=name, base=1, sign=1, values=[-1.0] * 1000)
    data = request.SerializeToString()  # its answer has 2.4 MB
    with run_serve_command(ngram_bundle, tmp_path) as (process, client), ExitStack() as stack:
        client.rescore([])
        before = resident_bytes(process.pid)
        for _ in range(4):
            connection = stack.enter_context(RawConnection(port_of(tmp_path), NO_WINDOW))
            for _ in range(50):
                connection.call(RESCORE, data)
        peak = before
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(0.05)
        assert peak - before < 450e6
        client.wait_ready(10)


def port_of(folder) -> int:
    return int((folder / "port").read_text())


@pytest.fixture
def server(ngram_bundle):
    with run_server(ngram_bundle, **SMALL_LIMITS, max_unread_s=600) as server:
        yield server


def unread_bytes(server) -> int:
    return server.server.memory.unread_bytes


def test_unread_answers_count_as_in_flight_and_refusals_name_the_limit(server):
    memory = server.server.memory
    with (
        grpc.insecure_channel(server.target) as channel,
        RawConnection(server.port, NO_WINDOW) as first,
        RawConnection(server.port, NO_WINDOW) as second,
    ):
        for connection in (first, second):
            for _ in range(20):
                connection.call(RESCORE, LARGE.SerializeToString())
            # Which calls are refused depends on when the first answers are ready; a refusal needs no window.
            frames = connection.read_all()
            reason = next(read.payload for read in frames if b"bytes in flight" in read.payload)
            assert b"_bytes)" in reason
        wait_until(lambda: memory.unread_bytes > 0 and not server.in_flight)
        assert memory.unread_bytes < memory.quota.held <= 1_500_000
        # Others are still answered, because no client may hold more than is free.
        assert RescorerServiceStub(channel).Rescore(SMALL, timeout=10).lists[0].status.code == 0
    wait_until(lambda: memory.quota.held == 0)
    assert memory.unread_bytes == 0


def test_a_request_that_waits_for_its_turn_counts_as_in_flight(server, monkeypatch):
    gate, memory = threading.Event(), server.server.memory

    async def take(*_: object) -> None:
        while not gate.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(Turns, "take", take)
    with grpc.insecure_channel(server.target) as channel:
        call = RescorerServiceStub(channel).Rescore.future(LARGE, timeout=60)
        try:
            wait_until(lambda: memory.quota.held == CALL_BYTES + LARGE.ByteSize(), 20)
        finally:
            gate.set()
        assert len(call.result().lists) == 1
    wait_until(lambda: memory.quota.held == 0)


def test_an_answer_is_dropped_if_its_client_does_not_read_it_in_time(ngram_bundle):
    with (
        run_server(ngram_bundle, max_unread_s=0.5) as server,
        RawConnection(server.port, NO_WINDOW) as connection,
    ):
        streams = [connection.call(RESCORE, LARGE.SerializeToString()) for _ in range(5)]
        open_stream = connection.call(RESCORE_STREAM, LARGE.SerializeToString(), end=False)
        wait_until(lambda: unread_bytes(server) > 0)
        unfinished = {*streams, open_stream}
        for read in connection.read_all():
            if read.ends_stream:
                unfinished.discard(read.stream)
            if not unfinished:
                break
        wait_until(lambda: server.server.memory.quota.held == 0)
        assert not any(read.kind == DATA for read in connection.frames)
        assert server.server.metrics.unread_answers._value.get() == 6
        stream = connection.call(RESCORE, SMALL.SerializeToString())  # the connection still works
        connection.grant(1_000_000, stream)
        assert grpc_code(connection.read_until_end(stream)) is not None


def test_a_stream_is_not_read_further_while_its_answer_is_unread(server):
    data = LARGE.SerializeToString()
    with RawConnection(server.port, NO_WINDOW) as connection:
        stream = connection.call(RESCORE_STREAM, *[data] * 2, end=False)
        wait_until(lambda: unread_bytes(server) > 0)
        first = unread_bytes(server)
        time.sleep(0.5)
        assert unread_bytes(server) == first
        connection.grant(2 * first, stream)
        connection.grant(10 * first, stream)
        connection.end(stream)
        connection.read_until_end(stream)
    wait_until(lambda: server.server.memory.quota.held == 0)


def test_streams_wait_for_memory_instead_of_being_refused(server):
    lists = 4
    with grpc.insecure_channel(server.target) as channel, ThreadPoolExecutor(6) as pool:
        stub = RescorerServiceStub(channel)

        def run_stream(_: int) -> int:
            request = pb.RescoreStreamRequest(lists=LARGE.lists)
            return sum(len(answer.lists) for answer in stub.RescoreStream(iter([request] * lists)))

        assert list(pool.map(run_stream, range(6))) == [lists] * 6


def test_a_slow_client_gets_its_answer(ngram_bundle):
    with (
        run_server(ngram_bundle, max_unread_s=30) as server,
        RawConnection(server.port, NO_WINDOW, receive_buffer_bytes=4096) as connection,
    ):
        stream = connection.call(RESCORE, LARGE.SerializeToString())
        wait_until(lambda: unread_bytes(server) > 0)
        size = unread_bytes(server)
        for _ in range(10):
            time.sleep(0.2)
            connection.grant(size // 8, stream)
        frames = connection.read_until_end(stream)
        body = b"".join(read.payload for read in frames if read.kind == DATA)
        assert len(pb.RescoreResponse.FromString(body[5:]).lists[0].hypotheses) == 1000
        wait_until(lambda: server.server.memory.quota.held == 0)


def test_polite_clients_hold_nothing_afterwards(server):
    with Client(server.target) as client:
        for _ in range(20):
            client.rescore([])
            client.list_models()
    wait_until(lambda: server.server.memory.quota.held == 0)
