"""Start and stop of a server: health, draining of calls and streams, and the port file."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer import BundleError, ConfigError, Rescorer
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.api.calls import Drain
from rescorer.service.server import SERVICE, SETTLE_S, Server
from tests.support.servers import run_server, wait_until
from tests.support.stubs import LIMITS, NOT_SERVING, SERVING, expect_error, make_list_message
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(bundle):
    with run_server(bundle, **LIMITS) as server:
        yield server


def test_health_reports_serving_between_load_and_stop(bundle):
    with run_server(bundle, load=False) as server, grpc.insecure_channel(server.target) as channel:
        health, stub = HealthStub(channel), RescorerServiceStub(channel)
        states = health.Watch(HealthCheckRequest(service=SERVICE), timeout=20)
        assert next(states).status == NOT_SERVING
        code, text, *_ = expect_error(stub.Rescore, pb.RescoreRequest())
        assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "the models are being loaded")
        server.load()
        assert server.scorer.calls == 1  # the warm-up
        assert next(states).status == SERVING
        assert health.Check(HealthCheckRequest()).status == SERVING
        # When it stops, it finishes the calls in flight.
        server.scorer.gate.clear()
        server.scorer.entered.clear()
        call = stub.Rescore.future(pb.RescoreRequest(lists=[make_list_message()]))
        assert server.scorer.entered.wait(5)
        stopping = server.submit(server.server.stop())
        assert next(states).status == NOT_SERVING
        time.sleep(2 * SETTLE_S)
        assert not stopping.done()
        assert expect_error(stub.Rescore, pb.RescoreRequest())[0] == grpc.StatusCode.UNAVAILABLE
        server.scorer.gate.set()
        assert call.result().lists[0].status.code == 0
        stopping.result(10)


def test_drain_waits_until_no_call_has_arrived_for_a_while():
    async def measure_wait_s(calls: int) -> float:
        drain, began = Drain(), time.monotonic()
        waiting = asyncio.create_task(drain.wait_until_quiet(0.2, 1.0))

        async def call() -> None:
            drain.add_call()

        for _ in range(calls):
            await asyncio.sleep(0.05)
            await asyncio.create_task(call())
        await waiting
        return time.monotonic() - began

    none, some, many = (asyncio.run(measure_wait_s(calls)) for calls in (0, 4, 22))
    assert 0.2 <= none < some
    assert some >= 0.4
    assert many >= 1.0


def test_stopping_ends_streams_in_progress(bundle):
    with run_server(bundle) as server, grpc.insecure_channel(server.target) as channel:
        with ThreadPoolExecutor(1) as sender:
            responses = RescorerServiceStub(channel).RescoreStream(
                iter(lambda: pb.RescoreStreamRequest(lists=[make_list_message()]), None)
            )
            next(responses)
            stopping = sender.submit(lambda: server.run(server.server.stop()))
            with pytest.raises(grpc.RpcError) as caught:
                list(responses)
            stopping.result(10)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_stopping_does_not_wait_for_silent_clients(bundle):
    finish = threading.Event()

    def send_one_then_wait():
        yield pb.RescoreStreamRequest(lists=[make_list_message()])
        finish.wait(20)

    with run_server(bundle, grace_s=20) as server, grpc.insecure_channel(server.target) as channel:
        states = HealthStub(channel).Watch(HealthCheckRequest())
        responses = RescorerServiceStub(channel).RescoreStream(send_one_then_wait())
        assert (next(states).status, len(next(responses).lists)) == (SERVING, 1)
        began = time.monotonic()
        server.run(server.server.stop())
        assert time.monotonic() - began < 5
        assert next(states).status == NOT_SERVING
        assert expect_error(lambda: states)[0] == grpc.StatusCode.UNAVAILABLE
        code, text, *_ = expect_error(lambda: responses)
        assert (code, text.split(";")[0]) == (grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        finish.set()


def test_stopping_answers_the_last_message_of_a_stream(bundle):
    with run_server(bundle) as server, grpc.insecure_channel(server.target) as channel:
        server.scorer.gate.clear()
        responses = RescorerServiceStub(channel).RescoreStream(
            iter([pb.RescoreStreamRequest(lists=[make_list_message()])])
        )
        wait_until(lambda: server.in_flight == 1)
        stopping = server.submit(server.server.stop())
        time.sleep(2 * SETTLE_S)
        server.scorer.gate.set()
        assert [len(response.lists) for response in responses] == [1]
        stopping.result(10)


def test_cancels_calls_after_the_grace_time(bundle):
    with run_server(bundle, grace_s=0.2) as server, grpc.insecure_channel(server.target) as channel:
        server.scorer.gate.clear()
        call = RescorerServiceStub(channel).Rescore.future(pb.RescoreRequest(lists=[make_list_message()]))
        wait_until(lambda: server.in_flight == 1)
        server.run(server.server.stop())
        assert expect_error(call.result)[0] == grpc.StatusCode.UNAVAILABLE
        server.scorer.gate.set()


def test_never_serves_with_an_unusable_bundle(tmp_path):
    bundle = write_bundle(tmp_path)
    (bundle / "text.json").write_text("{}")
    with run_server(bundle, load=False) as server:
        with pytest.raises(BundleError):
            server.load()
        with grpc.insecure_channel(server.target) as channel:
            assert HealthStub(channel).Check(HealthCheckRequest()).status == NOT_SERVING


def test_rejects_a_port_in_use(server, tmp_path):
    stale_port_file = tmp_path / "port"
    stale_port_file.write_text("1\n")

    async def start_second_server() -> None:
        update = {"port": server.port, "port_file": stale_port_file}
        await Server(server.settings.model_copy(update=update), Rescorer.load).start()

    with pytest.raises(ConfigError, match="cannot listen"):
        server.run(start_second_server())
    assert not stale_port_file.exists()


def test_the_port_file_exists_only_while_the_server_listens(bundle, tmp_path):
    port_file = tmp_path / "port"
    with run_server(bundle, load=False, port_file=port_file) as server:
        assert port_file.read_text() == f"{server.port}\n"
    assert not port_file.exists()
