"""Admission: quotas shared by clients, predictions of waits, and calls that wait for capacity."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from types import SimpleNamespace

import pytest

from rescorer.errors import Overloaded
from rescorer.service.engine import engine as engine_module
from rescorer.service.engine.admission import Admission, NotReady, Pace, Quota
from rescorer.service.engine.engine import ScoringEngine
from rescorer.service.engine.fair_queue import FairQueue
from rescorer.service.metrics import Metrics
from rescorer.service.settings import load_settings
from rescorer.service.workers.pool import WorkerPool


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
    pace = Pace()
    pace.record({"somebody": 1000}, 10.0)
    return Admission(Quota("lists", lists), Quota("tokens", tokens), min_tokens, queue.costs_before, pace)


def test_calls_that_end_before_a_worker_is_ready_are_refused_at_once():
    ready_in_s = 0.0
    admission = Admission(
        Quota("lists", 10),
        Quota("tokens", 10),
        1,
        FairQueue().costs_before,
        Pace(),
        ready_in_s=lambda: ready_in_s,
    )

    async def call(remaining_s):
        async with admission.admit("a", 1, 1, remaining_s=remaining_s):
            pass

    asyncio.run(call(1.0))
    asyncio.run(call(-0.1))  # late, but not because of the workers
    ready_in_s = 12.3
    asyncio.run(call(15.0))
    with pytest.raises(NotReady, match=r"loaded again, .* another 12.3 s, but the deadline is in 5.00 s"):
        asyncio.run(call(5.0))


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


def test_deadline_is_judged_by_the_turn_of_the_client(monkeypatch):
    monkeypatch.setattr("rescorer.service.engine.admission.INFLOW_S", 1e9)  # and clients bring no more
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


def test_empty_calls_of_a_client_may_be_prepared_at_the_same_time():
    async def admit_two() -> None:
        admission = make_admission(FairQueue())
        async with admission.admit("a", 0, 0) as first, admission.admit("a", 0, 0) as second:
            admission.begin_scoring(first, 0)
            admission.begin_scoring(second, 0)

    asyncio.run(admit_two())


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


def test_pace_of_large_batches_outweighs_that_of_many_small_ones():
    pace = Pace()
    for _ in range(100):
        pace.record({"a": 256}, 0.256)  # 1,000 per second
    assert pace.seconds_for({"a": 1000}) == pytest.approx(1.0)
    pace.record({"a": 10_000}, 0.1)
    assert pace.seconds_for({"a": 1000}) == pytest.approx(0.01)


def test_a_client_whose_work_is_slow_does_not_change_the_pace_of_others():
    pace = Pace()
    for number in range(5):
        pace.record({f"polite {number}": 1000}, 0.01)
    for _ in range(1000):
        pace.record({"odd": 2}, 20.0)
        pace.record({"slow": 16_000}, 60.0)
    assert pace.seconds_for({"polite 1": 1000}) == pytest.approx(0.01)
    assert pace.seconds_for({"unknown": 1000}) == pytest.approx(0.01)
    assert pace.seconds_for({"slow": 16_000}) == pytest.approx(60.0)


def test_a_single_slow_batch_does_not_change_the_pace_of_its_client():
    pace = Pace()
    for seconds in (0.01, 0.01, 30.0, 0.01):
        pace.record({"a": 1000}, seconds)
    assert pace.seconds_for({"a": 1000}) == pytest.approx(0.01)


def test_a_large_request_that_is_being_prepared_does_not_refuse_short_calls():
    """It will be scored in parts, which short items overtake."""
    queue: FairQueue[str] = FairQueue()
    pace = Pace()
    pace.record({"long": 16_000, "short": 16_000}, 320.0)  # 100 tokens per second
    admission = Admission(
        Quota("lists", 100),
        Quota("tokens", 1_000_000),
        50,
        lambda client, work, expected: queue.costs_before(client, work, expected, overtaken=1000.0),
        pace,
        max_item_tokens=4000,
    )

    async def make_calls():
        async with admission.admit("long", 1, 200_000):
            for _ in range(3):
                await admission.admit("short", 1, 100, remaining_s=5.0).__aenter__()
            with pytest.raises(Overloaded, match=r"about 2\d\.00 s"):  # its own, and three others
                await admission.admit("third", 1, 2000, remaining_s=5.0).__aenter__()

    asyncio.run(make_calls())


def test_no_more_is_predicted_than_the_server_holds(monkeypatch):
    """What the queue counts may exceed what was admitted, because the numbers of tokens are estimates."""
    monkeypatch.setattr("rescorer.service.engine.admission.INFLOW_S", 1e9)  # and clients bring no more
    pace = Pace()
    pace.record({"a": 1000}, 10.0)
    admission = Admission(Quota("lists", 10), Quota("tokens", 1000), 1, lambda *_: {"a": 1e9, "b": 1e9}, pace)

    async def make_calls():
        async with admission.admit("a", 1, 200):
            with pytest.raises(Overloaded, match=r"about 3\.00 s"):
                await admission.admit("b", 1, 100, remaining_s=4.0).__aenter__()

    asyncio.run(make_calls())


def test_a_client_that_is_refused_ten_times_in_a_row_while_workers_are_idle_is_reported():
    starved, idle = [], [True]
    admission = Admission(
        Quota("lists", 2),
        Quota("tokens", 1000),
        1,
        lambda *_: {},
        Pace(),
        is_idle=lambda: idle[0],
        on_starved=starved.append,
    )

    async def refuse(client: str, times: int) -> None:
        for _ in range(times):
            with pytest.raises(Overloaded):
                await admission.admit(client, 2, 1).__aenter__()

    async def make_calls():
        async with admission.admit("holder", 1, 1):
            await refuse("a", 9)
            async with admission.admit("a", 1, 1):  # an admitted call in between
                pass
            await refuse("a", 9)
            idle[0] = False
            await refuse("a", 1)
            idle[0] = True
            await refuse("a", 9)
            assert starved == []
            await refuse("a", 11)
            assert starved == ["a", "a"]
            await refuse("holder", 11)  # it is served already
            assert starved == ["a", "a"]

    asyncio.run(make_calls())


def test_a_starved_client_is_in_the_log_once_a_minute(monkeypatch):
    now, lines = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    metrics = Metrics()
    engine = ScoringEngine(load_settings(bundle="b"), WorkerPool([], print), metrics)
    monkeypatch.setattr(
        engine_module, "log", SimpleNamespace(warning=lambda *_, client: lines.append(client))
    )
    for at, client in ((0.0, "a"), (1.0, "a"), (2.0, "b"), (59.0, "a"), (60.0, "a"), (61.0, "b")):
        now[0] = at
        engine.admission._on_starved(client)
    assert lines == ["a", "b", "a"]
    assert metrics.starved_clients._value.get() == 6
