"""The fair queue: no item is lost, budgets are respected, and every client gets its predicted share."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.service.engine.fair_queue import MAX_REMEMBERED_CLIENTS, NO_WORK, FairQueue, TwoLevelQueue, Work
from tests.support.plain_fair_queue import PlainFairQueue

item_lists = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.sampled_from(["x", "y"]), st.booleans()),
    max_size=40,
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd"), st.integers(1, 9)),
        st.tuples(st.just("take"), st.just(""), st.just(0)),
        st.tuples(st.just("remove"), st.just(""), st.integers(0, 60)),
    ),
    max_size=60,
)


@given(item_lists, st.integers(1, 20), st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)))
def test_takes_every_item_once_in_batches_of_one_kind(items, budget, finished, removed):
    queue: TwoLevelQueue[int] = TwoLevelQueue(lambda number: number in finished)
    leave = [
        queue.put(number, cost, client=client, kind=kind, urgent=urgent)
        for number, (client, cost, kind, urgent) in enumerate(items)
    ]
    for number in removed & set(range(len(items))):
        leave[number]()
        leave[number]()  # without effect
    taken: list[int] = []
    while batch := queue.take(budget):
        batch += queue.take_more(items[batch[0]][2], budget - sum(items[number][1] for number in batch))
        assert len({items[number][2] for number in batch}) == 1
        assert len(batch) == 1 or sum(items[number][1] for number in batch) <= budget
        taken += batch
    assert len(queue) == 0
    assert sorted(taken) == [number for number in range(len(items)) if number not in finished | removed]
    for client in "abc":
        for kind in "xy":  # the items of one client are served in their order
            own = [
                number for number in taken if (items[number][0], *items[number][2:]) == (client, kind, False)
            ]
            assert own == sorted(own)


@given(
    operations, st.sampled_from("abcde"), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.booleans()
)
def test_predicts_what_precedes_new_items(operations, client, costs, equal):
    queue: FairQueue[tuple[str, int, int]] = FairQueue()
    twin, leave = PlainFairQueue(), []
    for number, (operation, name, value) in enumerate(operations):
        if operation == "put":
            entry = (name, number, ord(name) % 5 + 1 if equal else value)
            leave.append((entry, queue.put(entry, entry[2], client=name)))
            twin.put(*entry)
        elif operation == "take" and twin.waiting:
            assert queue.take(1) == [twin.take()]
        elif operation == "remove" and value < len(leave):
            entry, leave_queue = leave[value]
            leave_queue()
            twin.remove(entry)
    costs = [ord(client) % 5 + 1] * len(costs) if equal else [round(sum(costs) / len(costs))] * len(costs)
    predicted = sum(queue.costs_before(client, Work(sum(costs), len(costs))).values())
    largest = {
        name: max(cost for other, _, cost in twin.waiting if other == name) for name, _, _ in twin.waiting
    }
    actual = twin.cost_before(client, costs)
    if equal:
        assert predicted == pytest.approx(actual)
    else:
        assert abs(predicted - actual) <= sum(largest.values())


@given(operations, st.sets(st.sampled_from("abcd")), st.sampled_from([0, 1, 3, 99]))
def test_an_accepted_client_need_not_wait_for_others_with_tags_that_are_hardly_smaller(
    operations, accepted, lead
):
    queue: FairQueue[tuple[str, int, int]] = FairQueue()
    twin = PlainFairQueue()
    for number, (operation, name, value) in enumerate(operations):
        entry = (name, number, value)
        if operation == "put":
            queue.put(entry, value, client=name)
            twin.put(*entry)
        elif operation == "take" and twin.waiting:
            assert queue.take(1) == [twin.take()]
    least = min((twin.tags[client] for client, _, _ in twin.waiting), default=0)
    firsts = {client: (client, *rest) for client, *rest in reversed(twin.waiting)}
    due = [one for one in firsts.values() if one[0] in accepted and twin.tags[one[0]] <= least + lead]
    expected = min(due, key=lambda one: (twin.tags[one[0]], one[1]), default=None)
    found = queue.take_early(99, lambda client, kind: client in accepted, lead)
    assert found == ([expected] if expected else [])
    for entry in found:
        twin.serve(*entry)
    while twin.waiting:
        assert queue.take(1) == [twin.take()]
    assert queue.take_early(99, lambda client, kind: True) == queue.take(1) == []


def test_an_early_item_is_taken_only_if_it_fits_and_is_not_finished():
    finished = {"own 1"}
    queue: FairQueue[str] = FairQueue(lambda item: item in finished)
    queue.put("other", 5, client="a")
    for number in (1, 2):
        queue.put(f"own {number}", 5, client="b", size=number)
    assert queue.take_early(1, lambda client, kind: client == "b") == []
    assert queue.take_early(2, lambda client, kind: client == "b") == ["own 2"]
    assert (queue.take(9), len(queue)) == (["other"], 0)


def test_newcomers_do_not_come_later_because_somebody_came_early():
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.put(f"heavy {number}", 5, client="heavy")
        queue.put(f"light {number}", 9, client="light")
    for _ in range(3):
        queue.take_early(9, lambda client, kind: client == "light", 99)
    queue.put("new", 1, client="new")
    assert [*queue.take(1), *queue.take(1)] == ["heavy 0", "new"]


def test_predicts_by_turn_and_not_by_all_that_waits():
    queue: FairQueue[str] = FairQueue()
    for _ in range(200):
        queue.put("flood", 5, client="flooding")
    assert sum(queue.costs_before("modest", Work(5, 1)).values()) == 5
    assert sum(queue.costs_before("modest", Work(20, 4)).values()) == 15 + 20
    assert sum(queue.costs_before("flooding", Work(5, 1)).values()) == 1000
    queue.put("own", 5, client="modest")
    assert sum(queue.costs_before("flooding", Work(5, 1)).values()) == 1005
    assert sum(queue.costs_before("modest", NO_WORK, {"modest": Work(10, 2)}).values()) == 15 + 20
    assert sum(queue.costs_before("third", Work(5, 1), {"fourth": Work(100, 10)}).values()) == 5 + 5 + 10


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


def test_sizes_decide_what_is_taken_together_and_costs_what_a_client_pays():
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.put(f"deep {number}", 100, client="a", size=2)
        queue.put(f"flat {number}", 2, client="b")
    assert queue.take(5) == ["deep 0", "flat 0"]
    assert queue.take(5) == ["flat 1", "flat 2"]
    assert (queue.waiting_cost, queue.take(5)) == (200, ["deep 1", "deep 2"])


def test_client_does_not_pay_for_removed_items():
    queue: FairQueue[str] = FairQueue()
    leave = [queue.put("removed", 100, client="a") for _ in range(9)]
    for leave_queue in leave:
        leave_queue()
    queue.put("a", 5, client="a")
    queue.put("b", 5, client="b")
    assert [queue.take(1), queue.take(1), queue.take(1)] == [["a"], ["b"], []]


def test_forgets_clients_without_influence():
    queue: FairQueue[int] = FairQueue()
    for _ in range(3 * MAX_REMEMBERED_CLIENTS):
        queue.put(-1, 2, client="busy")
    for number in range(3 * MAX_REMEMBERED_CLIENTS):
        queue.put(number, 1, client=number)
        assert queue.take(3) in ([-1, number], [number, -1])
    assert len(queue._flows) <= MAX_REMEMBERED_CLIENTS


def test_urgent_items_are_first_but_get_only_half_of_the_service():
    queue: TwoLevelQueue[str] = TwoLevelQueue()
    queue.put("normal", 5)
    queue.put("urgent", 5, urgent=True)
    assert [queue.take(1), queue.take(1)] == [["urgent"], ["normal"]]
    for _ in range(100):
        queue.put("urgent", 5, client="flooding", urgent=True)
        queue.put("flood", 5, client="flooding")
    for _ in range(10):
        queue.put("modest", 5, client="modest")
    assert sum(queue.costs_before("modest", Work(5, 1)).values()) == 2 * (50 + 55) + 5
    served: Counter[str] = Counter()
    while served["modest"] < 10:
        served.update(queue.take(1))
    assert served["flood"] <= 12
    assert served["urgent"] <= 24
    queue.put("other", 5, client="modest", urgent=True)
    assert "other" in queue.take(1) + queue.take(1) + queue.take(1)


def test_what_a_client_uses_counts_until_it_has_been_served():
    serving = [True]
    queue: FairQueue[str] = FairQueue(is_serving=lambda: serving[0])
    for _ in range(2):
        queue.put("heavy", 50, client="a")
    assert queue.take(100) == ["heavy"] * 2
    queue.put("heavy", 50, client="a")
    queue.put("light", 5, client="b")
    assert [queue.take(1), queue.take(1)] == [["light"], ["heavy"]]
    serving[0] = False
    queue.put("first", 50, client="a")  # nothing waits, nothing is served: all begin again
    queue.put("second", 5, client="b")
    assert [queue.take(1), queue.take(1)] == [["first"], ["second"]]
