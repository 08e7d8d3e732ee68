"""Tests of the Python clients with a full server: retries, deadlines and degraded answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_status import rpc_status

from rescorer import ConfigError
from rescorer.client import NO_RETRY, AsyncClient, Client
from rescorer.errors import DeadlineExceeded, LimitExceeded, Overloaded
from rescorer.protocol.messages import status_from_error
from tests.support.clients import make_list
from tests.support.servers import run_server, wait_until

pytestmark = pytest.mark.slow


def test_retries_when_a_full_server_permits(ngram_bundle):
    with (
        run_server(ngram_bundle, max_in_flight_lists=8, max_lists=8) as server,
        Client(server.target) as client,
        Client(server.target, retry=NO_RETRY) as no_retry_client,
        ThreadPoolExecutor(2) as pool,
    ):
        client.wait_ready(10)
        for rescore in (
            lambda: client.rescore([make_list()]),
            lambda: list(no_retry_client.rescore_stream([make_list()])),
        ):
            server.scorer.gate.clear()
            first = pool.submit(client.rescore, [make_list()] * 8)
            wait_until(lambda: server.in_flight == 8)
            with pytest.raises(Overloaded):
                no_retry_client.rescore([make_list()])
            second = pool.submit(rescore)
            time.sleep(0.05)
            server.scorer.gate.set()
            assert [len(call.result(20)) for call in (first, second)] == [8, 1]


def test_stream_to_a_full_server_ends_at_its_deadline(ngram_bundle):
    async def rescore_stream_async(target: str) -> None:
        async with AsyncClient(target, retry=NO_RETRY) as client:
            async for _ in client.rescore_stream([make_list()], timeout_s=0.3):
                pass

    with (
        run_server(ngram_bundle, max_in_flight_lists=8, max_lists=8) as server,
        Client(server.target) as client,
    ):
        client.wait_ready(10)
        server.scorer.gate.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(client.rescore, [make_list()] * 8)
            wait_until(lambda: server.in_flight == 8)
            try:
                with pytest.raises(DeadlineExceeded):
                    asyncio.run(rescore_stream_async(server.target))
            finally:
                server.scorer.gate.set()
            assert len(first.result(20)) == 8


def test_a_message_that_is_too_large_is_not_sent_again(ngram_bundle):
    with run_server(ngram_bundle, max_message_bytes=1024) as server, Client(server.target) as client:
        with pytest.raises(LimitExceeded, match=r"at most 1024 \(max_message_bytes\)"):
            client.rescore([make_list("u1", "the cat " * 100, "the " * 300)])
        answered = server.server.metrics.calls.labels("Rescore", "INVALID_ARGUMENT", "LIMIT_EXCEEDED")
        assert answered._value.get() == 1


class RefusingServer(grpc.GenericRpcHandler):
    """Refuses the first calls, in the way of gRPC or of a server that is full, and then answers."""

    def __init__(self, refusals: int, trailing: tuple[tuple[str, str | bytes], ...] = ()) -> None:
        self.n_calls, self._refusals, self._trailing = 0, refusals, trailing

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.unary_unary_rpc_method_handler(self._answer) if "GetModel" in details.method else None

    def _answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.n_calls += 1
        if self.n_calls <= self._refusals:
            context.set_trailing_metadata(self._trailing)
            too_large = "Received message larger than max (9000000 vs. 8000000)"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full" if self._trailing else too_large)
        return b""

    @contextmanager
    def running(self) -> Iterator[str]:
        server = grpc.server(ThreadPoolExecutor(1), (self,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None)


def full_server_trailers() -> tuple[tuple[str, str | bytes], ...]:
    status = status_from_error(Overloaded("full", retry_after_s=0.01))
    return (*rpc_status.to_status(status).trailing_metadata, ("grpc-retry-pushback-ms", "10"))


async def get_model_async(target: str, **options: int) -> None:
    async with AsyncClient(target, only_ready=False, **options) as client:
        await client.get_model()


def get_model(target: str, **options: int) -> None:
    with Client(target, only_ready=False, **options) as client:
        client.get_model()


@pytest.mark.parametrize(
    "get", [get_model, lambda *args, **options: asyncio.run(get_model_async(*args, **options))]
)
def test_only_refusals_that_say_when_to_come_back_are_repeated(get):
    """gRPC's refusal of a message that is too large was repeated for 5 s."""
    options = {"max_message_bytes": 16 << 20}
    refusing = RefusingServer(9)
    with refusing.running() as target, pytest.raises(LimitExceeded, match="9000000"):
        get(target, **options)
    assert refusing.n_calls == 1
    full = RefusingServer(2, full_server_trailers())
    with full.running() as target:
        get(target, **options)
    assert full.n_calls == 3
    full = RefusingServer(9, full_server_trailers())
    with full.running() as target, pytest.raises(Overloaded, match="full"):
        get(target, **options)
    assert full.n_calls == 5


def test_errors_name_the_exceeded_setting(ngram_bundle):
    large = make_list("u1", "the cat " * 100, "the " * 300)
    with (
        run_server(ngram_bundle, max_message_bytes=1024, max_wait_s=0.2) as server,
        Client(server.target, retry=NO_RETRY) as client,
    ):
        for rescore in (client.rescore, lambda lists: list(client.rescore_stream(lists))):
            with pytest.raises(LimitExceeded, match=r"at most 1024 \(max_message_bytes\)"):
                rescore([large])
        server.scorer.gate.clear()
        try:
            with pytest.raises(DeadlineExceeded, match="max_wait_s"):
                client.rescore([make_list()])
        finally:
            server.scorer.gate.set()


def test_degrades_if_the_caller_permits(ngram_bundle):
    async def rescore_with_fallback(target: str) -> list:
        async with AsyncClient(target) as client:
            return await client.rescore([make_list()], fallback="first_pass", timeout_s=0.5)

    with run_server(ngram_bundle) as server, Client(server.target) as client:
        assert client.rescore([make_list()], fallback="first_pass")[0].degradation == ""
        server.scorer.gate.clear()
        try:
            (answer,) = client.rescore([make_list()], fallback="first_pass", timeout_s=0.5)
            (stream_answer,) = client.rescore_stream([make_list()], fallback="first_pass", timeout_s=0.5)
            (async_answer,) = asyncio.run(rescore_with_fallback(server.target))
            with pytest.raises(DeadlineExceeded):
                client.rescore([make_list()], timeout_s=0.2)
        finally:
            server.scorer.gate.set()
    assert answer.degradation == stream_answer.degradation == async_answer.degradation == "first_pass"
    assert [hypothesis.original_rank for hypothesis in answer.hypotheses] == [0, 1]
    with pytest.raises(ConfigError, match="'ngram'"), Client("127.0.0.1:1") as client:
        client.rescore([make_list()], fallback="anything")
