"""Connections that reset their calls without end are cut off, and calls of others are answered."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from rescorer.client import NO_RETRY, Client
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service import connections
from rescorer.service.connections import (
    REMEMBERED_S,
    REPEATED_BURST,
    RESETS_PER_S,
    ConnectionGuard,
    close_connection,
    name_peer,
)
from tests.support.clients import make_list
from tests.support.http2 import RESCORE, RawConnection
from tests.support.servers import run_server, wait_until
from tests.support.stubs import make_list_message

BURST = 100
FIRST, SECOND, FAR = "ipv4:10.0.0.1:1000", "ipv4:10.0.0.1:2000", "ipv4:10.0.0.2:1000"


class GuardedConnections:
    """A guard with a clock that a test sets, and the connections that it has closed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.closed: list[str] = []
        self.guard = ConnectionGuard(BURST, close=self._close, clock=lambda: self.now)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    def _close(self, peer: str) -> bool:
        assert threading.current_thread() is not threading.main_thread()
        self.closed.append(peer)
        return True

    async def find_closed(self) -> list[str]:
        """Return the connections that are closed, after all that are being closed."""
        await asyncio.get_running_loop().run_in_executor(None, int)
        return self.closed

    def reset(self, peer: str, count: int) -> None:
        for _ in range(count):
            self.guard.record_reset(peer)


def test_cuts_off_a_connection_that_resets_more_calls_than_it_may():
    async def story() -> None:
        those = GuardedConnections()
        those.reset(FIRST, BURST // 2)
        assert not those.guard.is_suspect(FIRST)
        those.reset(FIRST, BURST // 2)
        assert (await those.find_closed(), those.guard.is_suspect(FIRST)) == ([], True)
        those.reset(FAR, 1)
        those.reset(FIRST, 1)
        assert (await those.find_closed(), those.guard.is_cut_off(FIRST)) == ([FIRST], True)
        those.reset(FIRST, 5)  # they were waiting to be taken
        assert await those.find_closed() == [FIRST]
        those.reset(SECOND, REPEATED_BURST)
        assert await those.find_closed() == [FIRST]
        those.reset(SECOND, 1)  # from the same address, so it may make fewer
        assert (await those.find_closed(), those.guard.is_cut_off(FAR)) == ([FIRST, SECOND], False)

    asyncio.run(story())


def test_calls_that_are_answered_and_time_allow_for_more_resets():
    async def story() -> None:
        those = GuardedConnections()
        for _ in range(20):
            those.reset(FIRST, BURST)
            for _ in range(BURST):
                those.guard.record_answer(FIRST)
        for _ in range(20):
            those.reset(FAR, BURST)
            those.now += BURST / RESETS_PER_S
        assert await those.find_closed() == []
        assert not those.guard.is_suspect(FIRST)  # forgotten
        those.reset(FIRST, 2 * BURST)
        those.now += REMEMBERED_S + 1
        those.reset(SECOND, BURST)
        assert await those.find_closed() == [FIRST]

    asyncio.run(story())


def test_forgets_which_calls_to_drop(monkeypatch):
    monkeypatch.setattr(connections, "DROPPED_S", 0.0)

    async def story() -> None:
        those = GuardedConnections()
        those.reset(FIRST, BURST + 1)
        while those.guard.is_cut_off(FIRST):
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(story(), 20))


@pytest.mark.parametrize("has_free_descriptors", [True, False])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_closes_the_connection_of_a_peer(address, has_free_descriptors, monkeypatch):
    def fail(path):
        raise OSError(errno.EMFILE, "Too many open files")

    if not has_free_descriptors:
        monkeypatch.setattr(connections.os, "listdir", fail)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        if family is socket.AF_INET:
            raise
        pytest.skip("this machine has no IPv6")
    with (
        server,
        socket.create_connection(server.getsockname()[:2]) as client,
        server.accept()[0] as accepted,
    ):
        name = name_peer(client.getsockname())
        assert close_connection(name.replace("[", "%5B").replace("]", "%5D"))
        assert client.recv(1) == accepted.recv(1) == b""
    assert not close_connection("ipv4:127.0.0.1:1")


def reset_calls(port: int, batches: int) -> bool:
    """Open and reset calls over one connection, 50 per batch; whether the server closes it."""
    with RawConnection(port) as connection:
        connection.read()
        connection.acknowledge_settings()
        try:
            for _ in range(batches):
                for _ in range(50):
                    connection.reset(connection.call(RESCORE, end=False))
        except OSError:
            return True
        return False


@pytest.mark.slow
def test_calls_that_the_server_refuses_unread_are_no_resets(ngram_bundle):
    end = threading.Event()

    def send_nothing(first=()):
        yield from first
        end.wait(60)

    settings = {"max_client_lists": 4, "max_client_streams": 1}  # 138 resets would be allowed
    with run_server(ngram_bundle, **settings) as server, grpc.insecure_channel(server.target) as channel:
        stub = RescorerServiceStub(channel)
        request = pb.RescoreStreamRequest(lists=[make_list_message()])
        served = stub.RescoreStream(send_nothing([request]))
        next(served)  # it has the only place
        try:
            for _ in range(8):
                calls = [stub.RescoreStream(send_nothing()) for _ in range(50)]
                assert {call.code() for call in calls} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        finally:
            end.set()
        assert list(served) == []
        assert server.server.metrics.connections_cut_off._value.get() == 0


@pytest.mark.slow
def test_others_are_answered_while_connections_are_cut_off(ngram_bundle):
    with run_server(ngram_bundle, max_client_lists=4, max_client_streams=4) as server:
        cut_off = server.server.metrics.connections_cut_off._value
        with Client(server.target, retry=NO_RETRY) as client:
            client.wait_ready(10)
            for number in (1, 2):
                assert reset_calls(server.port, 10_000)
                wait_until(lambda number=number: cut_off.get() == number)
                assert [answer.id for answer in client.rescore([make_list()])] == ["u1"]
            assert not reset_calls(server.port, 1)
            assert [answer.id for answer in client.rescore([make_list()])] == ["u1"]
        assert cut_off.get() == 2
