"""Tests of the Python clients with a full server: retries, deadlines and degraded answers."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rescorer import ConfigError
from rescorer.client import NO_RETRY, AsyncClient, Client
from rescorer.errors import DeadlineExceeded, LimitExceeded, Overloaded
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
