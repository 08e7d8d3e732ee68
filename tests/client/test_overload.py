"""Clients of a full server: it is asked again, given up in time, or gives less than a whole answer."""

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


def test_a_full_server_is_asked_again_when_it_says_so(ngram_bundle):
    with (
        run_server(ngram_bundle, max_in_flight_lists=8, max_lists=8) as server,
        Client(server.target) as client,
        Client(server.target, retry=NO_RETRY) as hasty,
        ThreadPoolExecutor(2) as pool,
    ):
        client.wait_ready(10)
        for again in (
            lambda: client.rescore([make_list()]),
            lambda: list(hasty.rescore_stream([make_list()])),
        ):
            server.scorer.gate.clear()
            first = pool.submit(client.rescore, [make_list()] * 8)
            wait_until(lambda: server.in_flight == 8)
            with pytest.raises(Overloaded):
                hasty.rescore([make_list()])
            waiting = pool.submit(again)
            time.sleep(0.05)
            server.scorer.gate.set()
            assert [len(each.result(20)) for each in (first, waiting)] == [8, 1]


def test_a_bulk_gives_up_on_a_full_server_when_its_time_is_over(ngram_bundle):
    async def bulk(target: str) -> None:
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
                    asyncio.run(bulk(server.target))
            finally:
                server.scorer.gate.set()
            assert len(first.result(20)) == 8


def test_limits_that_a_call_meets_name_their_settings(ngram_bundle):
    large = make_list("u1", "the cat " * 100, "the " * 300)
    with (
        run_server(ngram_bundle, max_message_bytes=1024, max_wait_s=0.2) as server,
        Client(server.target, retry=NO_RETRY) as client,
    ):
        for ask in (client.rescore, lambda lists: list(client.rescore_stream(lists))):
            with pytest.raises(LimitExceeded, match=r"at most 1024 \(max_message_bytes\)"):
                ask([large])
        server.scorer.gate.clear()
        try:
            with pytest.raises(DeadlineExceeded, match="max_wait_s"):
                client.rescore([make_list()])
        finally:
            server.scorer.gate.set()


def test_a_caller_may_take_less_than_a_whole_answer(ngram_bundle):
    async def asked(target: str) -> list:
        async with AsyncClient(target) as client:
            return await client.rescore([make_list()], fallback="first_pass", timeout_s=0.5)

    with run_server(ngram_bundle) as server, Client(server.target) as client:
        assert client.rescore([make_list()], fallback="first_pass")[0].degradation == ""
        server.scorer.gate.clear()
        try:
            (answer,) = client.rescore([make_list()], fallback="first_pass", timeout_s=0.5)
            (bulk,) = client.rescore_stream([make_list()], fallback="first_pass", timeout_s=0.5)
            (other,) = asyncio.run(asked(server.target))
            with pytest.raises(DeadlineExceeded):
                client.rescore([make_list()], timeout_s=0.2)
        finally:
            server.scorer.gate.set()
    assert answer.degradation == bulk.degradation == other.degradation == "first_pass"
    assert [each.original_rank for each in answer.hypotheses] == [0, 1]
    with pytest.raises(ConfigError, match="'ngram'"), Client("127.0.0.1:1") as client:
        client.rescore([make_list()], fallback="anything")
