"""The fair queue and admission: no item is lost, budgets are respected, and every client gets a share."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import Overloaded
from rescorer.service.engine.admission import Admission, Quota, Throughput
from rescorer.service.engine.fair_queue import SWEEP_ABOVE, FairQueue

item_lists = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.sampled_from(["x", "y"]), st.booleans()),
    max_size=40,
)


@given(item_lists, st.integers(1, 20), st.sets(st.integers(0, 39)))
def test_takes_every_item_once_in_batches_of_one_kind(items, budget, finished):
    queue = FairQueue(lambda number: number in finished)
    for number, (client, cost, kind, urgent) in enumerate(items):
        queue.put(number, cost, client=client, kind=kind, urgent=urgent)
    taken: list[int] = []
    while batch := queue.take(budget):
        batch += queue.take_more(items[batch[0]][2], budget - sum(items[number][1] for number in batch))
        assert len({items[number][2] for number in batch}) == 1
        assert len(batch) == 1 or sum(items[number][1] for number in batch) <= budget
        taken += batch
    assert sorted(taken) == [number for number in range(len(items)) if number not in finished]
    for client in "abc":
        for kind in "xy":  # the items of one client are served in their order
            own = [
                number for number in taken if (items[number][0], *items[number][2:]) == (client, kind, False)
            ]
            assert own == sorted(own)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_flooding_client_delays_only_itself(costs):
    queue: FairQueue[str] = FairQueue()
    for _ in range(200):
        queue.put("flood", 5, client="flooding")
    for cost in costs:
        queue.put("own", cost, client="modest")
    served: Counter[str] = Counter()
    while served["own"] < len(costs):
        served.update(queue.take(1))
    assert served["flood"] * 5 <= sum(costs) + 2 * 9


def test_only_the_next_items_join_a_batch_and_only_if_they_fit():
    queue: FairQueue[str] = FairQueue()
    queue.put("small", 3, kind="x")
    queue.put("large", 9, kind="x")
    queue.put("other", 1, client="b", kind="y")
    assert queue.take_more("y", 5) == []
    assert queue.take_more("x", 5) == ["small"]
    assert queue.take_more("x", 5) == []
    assert (queue.take(5), queue.take_more("x", 5), queue.take(5)) == (["other"], [], ["large"])


def test_serves_urgent_items_first_and_removes_finished_ones():
    finished: set[int] = set()
    queue = FairQueue(finished.__contains__)
    queue.put(-1, 1)
    for number in range(10 * SWEEP_ABOVE):
        queue.put(number, 1)
        finished.add(number)
        queue.count_finished()
    assert len(queue) <= 2 * SWEEP_ABOVE
    queue.put(-2, 1, urgent=True)
    assert queue.take(1) == [-2]
    assert queue.take(9) == [-1]
    assert queue.take(9) == []


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


def test_refusal_because_of_the_deadline_says_when_to_retry():
    now = [0.0]
    throughput = Throughput(lambda: now[0])
    throughput.mark_busy()
    now[0] = 1.0
    throughput.record(100)  # 100 tokens per second
    admission = Admission(Quota("lists", 10), Quota("tokens", 1000), 50, throughput)

    async def make_calls():
        async with admission.admit("a", 1, 200):
            with pytest.raises(Overloaded, match="deadline is in") as caught:
                async with admission.admit("b", 1, 100, remaining_s=2.0):
                    pass
            assert 1.5 < caught.value.retry_after_s < 2.5
            with pytest.raises(Overloaded):  # the prediction has a safety margin
                async with admission.admit("b", 1, 100, remaining_s=4.0):
                    pass
            async with admission.admit("b", 1, 100, remaining_s=5.0) as ticket:
                admission.correct(ticket, 300)
                assert admission.tokens.held == 500
            waiting = asyncio.create_task(wait_for_room(admission))
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert (admission.lists.held, admission.tokens.held) == (0, 0)

    asyncio.run(make_calls())


async def wait_for_room(admission: Admission) -> None:
    async with admission.admit("c", 10, 1, wait=True):
        pass


def test_waiting_client_gets_room_while_another_floods(monkeypatch):
    monkeypatch.setattr("rescorer.service.engine.admission.REFUSED_MEMORY_S", 0.01)
    admission, rng = Admission(Quota("lists", 10), Quota("tokens", 1000), 50), random.Random(1)

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
