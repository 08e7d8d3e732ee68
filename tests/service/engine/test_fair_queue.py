"""The queue of waiting work and the admission to it: nothing lost, budgets kept, a share for everybody."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import Overloaded
from rescorer.service.engine.admission import Admission, Pace, Quota
from rescorer.service.engine.fair_queue import SWEEP_ABOVE, FairQueue

items = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.sampled_from(["x", "y"]), st.booleans()),
    max_size=40,
)


@given(items, st.integers(1, 20), st.sets(st.integers(0, 39)))
def test_every_item_is_taken_once_in_batches_of_one_kind(some, budget, dead):
    queue = FairQueue(lambda item: item in dead)
    for number, (client, cost, kind, urgent) in enumerate(some):
        queue.put(number, cost, client=client, kind=kind, urgent=urgent)
    taken: list[int] = []
    while batch := queue.take(budget):
        batch += queue.more(some[batch[0]][2], budget - sum(some[each][1] for each in batch))
        assert len({some[each][2] for each in batch}) == 1
        assert len(batch) == 1 or sum(some[each][1] for each in batch) <= budget
        taken += batch
    assert sorted(taken) == [each for each in range(len(some)) if each not in dead]
    for client in "abc":
        for kind in "xy":  # of one client, in the order they came
            own = [each for each in taken if (some[each][0], *some[each][2:]) == (client, kind, False)]
            assert own == sorted(own)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_a_flooding_client_only_waits_behind_itself(costs):
    queue: FairQueue[str] = FairQueue()
    for _ in range(200):
        queue.put("flood", 5, client="flooding")
    for cost in costs:
        queue.put("own", cost, client="modest")
    served: Counter[str] = Counter()
    while served["own"] < len(costs):
        served.update(queue.take(1))
    assert served["flood"] * 5 <= sum(costs) + 2 * 9


def test_only_what_is_next_and_fits_joins_a_batch():
    queue: FairQueue[str] = FairQueue()
    queue.put("small", 3, kind="x")
    queue.put("large", 9, kind="x")
    queue.put("other", 1, client="b", kind="y")
    assert queue.more("y", 5) == []
    assert queue.more("x", 5) == ["small"]
    assert queue.more("x", 5) == []
    assert (queue.take(5), queue.more("x", 5), queue.take(5)) == (["other"], [], ["large"])


def test_urgent_items_go_first_and_the_dead_do_not_pile_up():
    dead: set[int] = set()
    queue = FairQueue(dead.__contains__)
    queue.put(-1, 1)
    for number in range(10 * SWEEP_ABOVE):
        queue.put(number, 1)
        dead.add(number)
        queue.give_up()
    assert len(queue) <= 2 * SWEEP_ABOVE
    queue.put(-2, 1, urgent=True)
    assert queue.take(1) == [-2]
    assert queue.take(9) == [-1]
    assert queue.take(9) == []


def test_several_clients_leave_room_for_one_that_comes():
    room = Quota("lists", 12, each=9)
    assert "at most 12" not in room.refusal("a", 9, shared=False)
    room.add("a", 6)
    assert room.refusal("a", 3, shared=False) == ""
    assert "at most 9" in room.refusal("a", 4, shared=False)
    assert "others need room" in room.refusal("a", 1, shared=True)
    assert room.refusal("b", 6, shared=True) == ""
    assert "at most 12 may be" in room.refusal("b", 7, shared=True)
    room.add("a", -6)
    assert room.refusal("b", 99, shared=True) == ""  # alone, it may be larger than the room
    assert not room.has_others("a")


def test_a_call_that_would_come_too_late_is_told_when_to_come_back():
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.busy()
    now[0] = 1.0
    pace.did(100)  # a second for 100
    admission = Admission(Quota("lists", 10), Quota("tokens", 1000), 50, pace)

    async def calls():
        async with admission.admitted("a", 1, 200):
            with pytest.raises(Overloaded, match="deadline is in") as caught:
                async with admission.admitted("b", 1, 100, remaining_s=2.0):
                    pass
            assert 1.5 < caught.value.retry_after_s < 2.5
            with pytest.raises(Overloaded):  # the pace varies
                async with admission.admitted("b", 1, 100, remaining_s=4.0):
                    pass
            async with admission.admitted("b", 1, 100, remaining_s=5.0) as ticket:
                admission.correct(ticket, 300)
                assert admission.tokens.held == 500
            waiting = asyncio.create_task(entered(admission))
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
        assert (admission.lists.held, admission.tokens.held) == (0, 0)

    asyncio.run(calls())


def test_who_waits_for_room_gets_it_however_long_another_floods(monkeypatch):
    monkeypatch.setattr("rescorer.service.engine.admission.RECENT_S", 0.01)
    admission, rng = Admission(Quota("lists", 10), Quota("tokens", 1000), 50), random.Random(1)

    async def flood(over: asyncio.Event) -> None:
        while not over.is_set():
            with contextlib.suppress(Overloaded):
                async with admission.admitted("flooding", 1, 1):
                    await asyncio.sleep(rng.uniform(0.1, 0.2))
            await asyncio.sleep(0.001)

    async def calls():
        over = asyncio.Event()
        flooding = [asyncio.create_task(flood(over)) for _ in range(40)]
        await asyncio.sleep(0.1)
        assert admission.lists.held == 10
        async with asyncio.timeout(5), admission.admitted("modest", 4, 1, wait=True):
            over.set()
        await asyncio.gather(*flooding)

    asyncio.run(calls())


def test_many_small_batches_do_not_hide_how_fast_large_ones_are():
    now = [0.0]
    pace = Pace(lambda: now[0])
    for _ in range(100):
        pace.busy()
        now[0] += 0.01
        pace.did(10)  # 1,000 a second
        pace.idle()
    assert pace.seconds_for(1000) == pytest.approx(1.0)
    pace.busy()
    now[0] += 0.02
    pace.did(1000)
    assert 0.02 < pace.seconds_for(1000) < 0.04


async def entered(admission: Admission) -> None:
    async with admission.admitted("c", 10, 1, wait=True):
        pass
