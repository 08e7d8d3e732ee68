"""Admission: quotas shared by clients, predictions of waits, and calls that wait for capacity."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from rescorer.errors import Overloaded
from rescorer.service.engine.admission import Admission, Quota, Throughput
from rescorer.service.engine.engine import FairQueue


def test_active_clients_leave_room_for_another():
    quota = Quota("lists", 12, per_client=9)
    assert quota.reason_to_refuse("a", 9, shared=False) == ""
    quota.add("a", 6)
    assert quota.reason_to_refuse("a", 3, shared=False) == ""
    assert "expected at most 9 (" in quota.reason_to_refuse("a", 4, shared=False)
    assert "other clients are active" in quota.reason_to_refuse("a", 1, shared=True)
    assert quota.reason_to_refuse("b", 6, shared=True) == ""
    assert "expected at most 12 (" in quota.reason_to_refuse("b", 7, shared=True)
    quota.add("a", -6)
    assert quota.reason_to_refuse("b", 99, shared=True) == ""  # alone, it may exceed the capacity
    assert not quota.has_others("a")
    quota.add("b", 1)
    assert quota.has_others("a")
    assert not quota.has_others("b")
    quota.add("a", 1)
    assert quota.has_others("b")


def make_admission(queue: FairQueue, lists=10, tokens=1000, min_tokens=50) -> Admission:
    """Admission for a server that scores 100 tokens per second."""
    now = [0.0]
    throughput = Throughput(lambda: now[0])
    throughput.mark_busy()
    now[0] = 1.0
    throughput.record(100)
    return Admission(
        Quota("lists", lists), Quota("tokens", tokens), min_tokens, queue.cost_before, throughput
    )


def test_refusal_because_of_the_deadline_says_when_to_retry():
    admission = make_admission(FairQueue())

    async def make_calls():
        async with admission.admit("a", 1, 200):
            with pytest.raises(Overloaded, match="deadline is in") as caught:
                async with admission.admit("a", 1, 100, remaining_s=2.0):
                    pass
            assert 1.5 < caught.value.retry_after_s < 2.5
            with pytest.raises(Overloaded):  # the prediction has a safety margin
                async with admission.admit("a", 1, 100, remaining_s=4.0):
                    pass
            async with admission.admit("a", 1, 100, remaining_s=5.0) as ticket:
                admission.begin_scoring(ticket, 300)
                assert admission.tokens.held == 500
            waiting = asyncio.create_task(wait_for_room(admission))
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert (admission.lists.held, admission.tokens.held) == (0, 0)

    asyncio.run(make_calls())


def test_deadline_is_judged_by_the_turn_of_the_client():
    queue: FairQueue[str] = FairQueue()
    admission = make_admission(queue, lists=1000, tokens=50_000)

    async def make_calls():
        async with contextlib.AsyncExitStack() as held:
            for number in range(100):
                ticket = await held.enter_async_context(admission.admit("flooding", 1, 100))
                if number < 50:  # the others are still being prepared
                    admission.begin_scoring(ticket, 100)
                    queue.put("flood", 100, client="flooding")
            # 100 s of work, but the modest client is next or the one after that.
            async with admission.admit("modest", 1, 100, remaining_s=4.0):
                with pytest.raises(Overloaded, match=r"about 4\.00 s"):
                    async with admission.admit("modest", 1, 100, remaining_s=4.0):
                        pass
            with pytest.raises(Overloaded, match=r"about 101\.00 s") as caught:
                async with admission.admit("flooding", 1, 100, remaining_s=60.0):
                    pass
            assert caught.value.retry_after_s > 3

    asyncio.run(make_calls())


def test_a_large_request_without_lists_does_not_break_the_prediction_for_others():
    queue: FairQueue[str] = FairQueue()
    admission = make_admission(queue, lists=10, tokens=10_000)

    async def make_calls():
        async with admission.admit("hostile", 0, 5000), admission.admit("modest", 1, 10, remaining_s=20.0):
            assert admission.lists.held == 1

    asyncio.run(make_calls())


async def wait_for_room(admission: Admission) -> None:
    async with admission.admit("c", 10, 1, wait=True):
        pass


def test_waiting_client_gets_room_while_another_floods(monkeypatch):
    monkeypatch.setattr("rescorer.service.engine.admission.REFUSED_MEMORY_S", 0.01)
    admission, rng = make_admission(FairQueue()), random.Random(1)

    async def flood(stop: asyncio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(Overloaded):
                async with admission.admit("flooding", 1, 1):
                    await asyncio.sleep(rng.uniform(0.1, 0.2))
            await asyncio.sleep(0.001)

    async def make_calls():
        stop = asyncio.Event()
        flooding = [asyncio.create_task(flood(stop)) for _ in range(40)]
        await asyncio.sleep(0.1)
        assert admission.lists.held == 10
        async with asyncio.timeout(5), admission.admit("modest", 4, 1, wait=True):
            stop.set()
        await asyncio.gather(*flooding)

    asyncio.run(make_calls())


def test_waiting_call_is_not_starved_by_small_calls_of_many_clients():
    admission = make_admission(FairQueue())

    async def wait(client: str, lists: int) -> None:
        async with admission.admit(client, lists, 1, wait=True):
            pass

    async def make_calls():
        calls = [admission.admit(f"small {number}", 1, 1) for number in range(10)]
        for call in calls:
            await call.__aenter__()
        waiting = asyncio.create_task(wait("large", 5))
        for number, call in enumerate(calls[:5]):
            await asyncio.sleep(0)
            assert not waiting.done()
            await call.__aexit__(None, None, None)
            if number < 4:
                with pytest.raises(Overloaded, match="5 are kept free for a call that waits and 1 more were"):
                    await admission.admit(f"another {number}", 1, 1).__aenter__()
        await waiting
        async with admission.admit("another", 5, 1):  # nothing is kept free any more
            pass
        for call in calls[5:]:
            await call.__aexit__(None, None, None)

    asyncio.run(make_calls())


def test_waiting_calls_leave_half_of_the_capacity_and_what_they_no_longer_need():
    admission = make_admission(FairQueue())

    async def wait(client: str) -> None:
        async with admission.admit(client, 9, 1, wait=True):
            pass

    async def make_calls():
        async with admission.admit("small", 2, 1), admission.admit("busy", 1, 1):
            busy = asyncio.create_task(wait("busy"))  # has something in flight: nothing is kept free for it
            await asyncio.sleep(0)
            async with admission.admit("other", 4, 1):
                pass
            large = asyncio.create_task(wait("large"))
            await asyncio.sleep(0)
            async with admission.admit("other", 2, 1):  # half of the capacity
                with pytest.raises(Overloaded, match="5 are kept free"):
                    await admission.admit("another", 1, 1).__aenter__()
            large.cancel()
            await asyncio.wait([large])
            async with admission.admit("other", 5, 1):
                pass
        await busy

    asyncio.run(make_calls())


def test_throughput_of_large_batches_outweighs_that_of_many_small_ones():
    now = [0.0]
    throughput = Throughput(lambda: now[0])
    for _ in range(100):
        throughput.mark_busy()
        now[0] += 0.01
        throughput.record(10)  # 1,000 per second
        throughput.mark_idle()
    assert throughput.seconds_for(1000) == pytest.approx(1.0)
    throughput.mark_busy()
    now[0] += 0.02
    throughput.record(1000)
    assert 0.02 < throughput.seconds_for(1000) < 0.04
