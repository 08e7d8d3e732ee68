"""The raw HTTP/2 client of the tests: it reads what the server sends only when asked to."""

from __future__ import annotations

import pytest

from rescorer.protocol.v1 import rescorer_pb2 as pb
from tests.support.http2 import DATA, HEADERS, NO_WINDOW, RESCORE, RawConnection, grpc_code, trailers_of
from tests.support.servers import run_server
from tests.support.stubs import make_list_message

pytestmark = pytest.mark.slow

REQUEST = pb.RescoreRequest(lists=[make_list_message()]).SerializeToString()


@pytest.fixture(scope="module")
def server(bundle):
    with run_server(bundle) as server:
        yield server


def test_reads_an_answer_and_its_status(server):
    with RawConnection(server.port) as connection:
        frames = connection.read_until_end(connection.call(RESCORE, REQUEST))
        assert [read.kind for read in frames] == [HEADERS, DATA, HEADERS]
        response = pb.RescoreResponse.FromString(frames[1].payload[5:])
        assert (response.lists[0].status.code, grpc_code(frames)) == (0, 0)


def test_reads_a_refusal(server):
    with RawConnection(server.port) as connection:
        request = pb.RescoreRequest(model="other").SerializeToString()
        frames = connection.read_until_end(connection.call(RESCORE, request))
        assert grpc_code(frames) == 5
        assert "'other' is not served" in trailers_of(frames)


def test_without_a_window_an_answer_waits_until_it_is_granted(server):
    with RawConnection(server.port, NO_WINDOW) as connection:
        stream = connection.call(RESCORE, REQUEST)
        with pytest.raises(TimeoutError):
            connection.read_until_end(stream, timeout_s=1)
        assert not any(read.kind == DATA for read in connection.frames)
        connection.grant(100_000, stream)
        assert grpc_code(connection.read_until_end(stream)) == 0
