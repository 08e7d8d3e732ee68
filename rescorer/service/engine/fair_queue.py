"""Queues that are fair to clients: who is served next, and what will be served before new work.

Start-time fair queueing (Goyal, Vin and Cheng 1996): each client has a tag, the virtual time at which its
share of the service reaches its next item, and the client with the smallest tag is served first. A client
that sends much work delays only itself, and the tags tell what will be served before a new item. Urgent items
are served first, but get at most half of the service. Otherwise a client that sends more urgent items than
the server can score would keep all others from being served.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


ROUNDING = 1e-9
"""Share of an item that sums of predicted costs may lack because they are rounded."""


class Work(NamedTuple):
    """The cost of some items, and their number. Predictions need not be whole numbers."""

    cost: float = 0
    items: float = 0

    def plus(self, cost: float, items: float) -> Work:
        return Work(self.cost + cost, self.items + items)

    def times(self, factor: float) -> Work:
        return Work(self.cost * factor, self.items * factor)

    def due_within(self, span: float) -> float:
        """Return the cost of the items that are due within a span of virtual time, its end included.

        All items are assumed to cost the same. The first is due at the beginning of the span. Each of the
        others is due when virtual time has advanced by the cost of the previous one. A cost without items,
        such as that of a large request without lists, is never due.
        """
        if span < 0 or not self.cost or not self.items:
            return 0.0
        cost_per_item = self.cost / self.items
        n_due = math.floor(span / cost_per_item + ROUNDING) + 1
        return min(self.cost, n_due * cost_per_item)


NO_WORK = Work()


MAX_EARLY = 64
"""Largest number of clients among which ``take_early`` looks for one."""
MAX_REMEMBERED_CLIENTS = 1024
"""If more clients than this are remembered, those that no longer influence future tags are forgotten."""


@dataclass(eq=False, slots=True)
class Flow(Generic[Item]):
    """The waiting items of one client."""

    client: Hashable
    tag: int = 0
    """Virtual time at which the next item is due."""
    waiting: Work = NO_WORK
    entries: dict[Hashable, OrderedDict[int, Entry[Item]]] = field(default_factory=dict)
    """The items by kind and number, in the order of their arrival."""

    def first(self, kind: Hashable) -> Entry[Item]:
        return next(iter(self.entries[kind].values()))


@dataclass(eq=False, slots=True)
class Entry(Generic[Item]):
    """The place of an item in the queue."""

    number: int
    item: Item
    cost: int
    size: int
    kind: Hashable
    flow: Flow[Item] | None
    """None: the item no longer waits."""


def anyone(client: Hashable) -> bool:
    return True


class FairQueue(Generic[Item]):
    """A queue of items of several clients and kinds.

    Args:
        is_finished: whether an item no longer needs to be served; such an item is skipped.
        is_serving: whether taken items are still being served. Then what clients have used is remembered,
            although none of them waits.
    """

    def __init__(
        self,
        is_finished: Callable[[Item], bool] = lambda item: False,
        is_serving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_finished, self._is_serving = is_finished, is_serving
        self._virtual_time = 0
        self._flows: dict[Hashable, Flow[Item]] = {}  # by client
        self._busy: dict[Hashable, Flow[Item]] = {}  # by client: those with waiting items
        self._heaps: dict[Hashable, list[tuple[int, int, Flow[Item]]]] = {}
        """For each kind, a heap of the flows that have items of it, with their tags and the numbers of their
        first items.

        An entry is brought up to date when it comes first. Until then its tag and number may be too small,
        and its flow may have no such items any more.
        """
        self._numbers = itertools.count()
        self._n_waiting = 0
        self.waiting_cost = self.taken_cost = 0
        """Cost of the waiting items, and of all that have ever been taken."""

    def __len__(self) -> int:
        """Number of items, including finished ones that have not been skipped yet."""
        return self._n_waiting

    def put(
        self,
        item: Item,
        cost: int,
        *,
        client: Hashable = "",
        kind: Hashable = "",
        size: int | None = None,
    ) -> Callable[[], None]:
        """Add an item. Return a function that removes the item, at no cost to its client, if it still waits.

        Args:
            cost: cost of serving the item, above 0.
            kind: only items of the same kind are taken together.
            size: room that it takes among items that are taken together; None: its cost.
        """
        self._start_over_if_empty()
        flow = self._flow_of(client)
        if not flow.waiting.items:
            flow.tag = max(flow.tag, self._virtual_time)
            self._busy[client] = flow
        entry = Entry(next(self._numbers), item, cost, cost if size is None else size, kind, flow)
        if kind not in flow.entries:
            flow.entries[kind] = OrderedDict()
            heapq.heappush(self._heaps.setdefault(kind, []), (flow.tag, entry.number, flow))
        flow.entries[kind][entry.number] = entry
        flow.waiting = flow.waiting.plus(cost, 1)
        self._n_waiting += 1
        self.waiting_cost += cost
        return functools.partial(self._remove, entry)

    def take(self, budget: int, accepts: Callable[[Hashable], bool] = anyone) -> list[Item]:
        """Remove and return the next items, all of one kind, whose sizes are at most ``budget`` together.

        The first item is returned even if it alone is larger. The result is empty if nothing is waiting.

        Args:
            accepts: whether the items of a client may be among the others; the first one whose client is not
                accepted ends them.
        """
        return self._take(self.next_kind(), budget, 1, accepts)

    def take_more(
        self, kind: Hashable, budget: int, accepts: Callable[[Hashable], bool] = anyone
    ) -> list[Item]:
        """Remove and return the next items if they are of this kind and fit into ``budget`` together."""
        return self._take(kind, budget, 0, accepts) if kind == self.next_kind() else []

    def take_early(self, budget: int, accepts: Callable[[Hashable, Any], bool], lead: int = 0) -> list[Item]:
        """Remove and return an item of an accepted client and kind, if its turn is now or soon.

        Items are served in batches, so that clients with much work get ahead of others by a batch at a time.
        This lets others get ahead of them a little. At most ``MAX_EARLY`` clients are looked at.

        Args:
            lead: how far a client's tag may be above the smallest one.

        Returns:
            One item of at most the size ``budget``, or none: that of the client with the smallest tag among
            those looked at.
        """
        firsts = self._first_flows()
        least = min((flow.tag for flow in firsts.values()), default=0)
        found: list[tuple[int, int, Flow[Item], Hashable]] = []
        for kind in firsts:
            for flow in itertools.islice(self._find_due(kind, least + lead), MAX_EARLY):
                entry = next(
                    (one for one in flow.entries[kind].values() if not self._is_finished(one.item)), None
                )
                if entry and entry.size <= budget and accepts(flow.client, kind):
                    found.append((flow.tag, entry.number, flow, kind))
        if not found:
            return []
        _, number, flow, kind = min(found, key=lambda one: one[:2])
        while flow.first(kind).number != number:
            self._pop(flow, kind)
        before = self._virtual_time
        item = self._serve(flow, kind)
        self._virtual_time = min(self._virtual_time, max(before, least))  # else newcomers would come later
        return [item]

    def next_kind(self) -> Hashable:
        """Return the kind of the next item; None if nothing is waiting."""
        firsts = self._first_flows()
        return min(firsts, key=lambda kind: (firsts[kind].tag, firsts[kind].first(kind).number), default=None)

    def costs_before(
        self,
        client: Hashable,
        work: Work,
        expected: Mapping[Hashable, Work] | None = None,
        overtaken: float = math.inf,
    ) -> dict[Hashable, float]:
        """Predict the cost, by client, of everything that will be served before the last of some new items.

        This counts the client's own earlier items, and the items of every other client whose tags come before
        the tag of the last new item. If all items of a client cost the same and nothing else arrives, the
        prediction is exact; otherwise it is off by less than an item per client.

        Args:
            work: the new items. All but the last are included in the result.
            expected: work that clients will add before the new items are served.
            overtaken: the first item of another client does not count if it costs more than this.
        """
        expected = expected or {}
        own = self._work_of(client, expected)
        first_items_cost = work.cost * (work.items - 1) / work.items if work.items else 0.0
        costs: dict[Hashable, float] = {client: own.cost + first_items_cost}
        due = self._tag_of(client) + costs[client]
        for other in (self._busy.keys() | expected.keys()) - {client}:
            theirs = self._work_of(other, expected)
            if cost := theirs.due_within(due - self._tag_of(other)):
                first = theirs.cost / theirs.items
                costs[other] = cost - first * (first > overtaken)
        return costs

    def _work_of(self, client: Hashable, expected: Mapping[Hashable, Work]) -> Work:
        flow = self._busy.get(client)
        return (flow.waiting if flow else NO_WORK).plus(*expected.get(client, NO_WORK))

    def _tag_of(self, client: Hashable) -> int:
        """Virtual time at which the next item of a client is due."""
        flow = self._flows.get(client)
        if flow is None:
            return self._virtual_time
        return flow.tag if flow.waiting.items else max(flow.tag, self._virtual_time)

    def _flow_of(self, client: Hashable) -> Flow[Item]:
        if client not in self._flows:
            if len(self._flows) >= MAX_REMEMBERED_CLIENTS:
                self._flows = {
                    name: flow
                    for name, flow in self._flows.items()
                    if flow.waiting.items or flow.tag > self._virtual_time
                }
            self._flows[client] = Flow(client)
        return self._flows[client]

    def _take(
        self, kind: Hashable, budget: int, at_least: int, accepts: Callable[[Hashable], bool]
    ) -> list[Item]:
        items: list[Item] = []
        while (flow := self._first_flow(kind)) is not None:
            entry = flow.first(kind)
            if len(items) >= at_least and (entry.size > budget or not accepts(flow.client)):
                break
            budget -= entry.size
            items.append(self._serve(flow, kind))
        return items

    def _serve(self, flow: Flow[Item], kind: Hashable) -> Item:
        """Remove and return the first item of a client and kind, at its cost."""
        entry = flow.first(kind)
        item = entry.item
        self._pop(flow, kind)
        self._virtual_time = max(self._virtual_time, flow.tag)
        flow.tag += entry.cost
        self.taken_cost += entry.cost
        return item

    def _find_due(self, kind: Hashable, limit: int) -> Iterator[Flow[Item]]:
        """Yield the flows with items of a kind whose tags are at most ``limit``."""
        heap, places = self._heaps[kind], [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= limit:  # so may be those below it
                if heap[place][2].tag <= limit and kind in heap[place][2].entries:
                    yield heap[place][2]
                places += 2 * place + 1, 2 * place + 2

    def _first_flows(self) -> dict[Hashable, Flow[Item]]:
        """Return the first flow of each kind that has unfinished items."""
        return {kind: flow for kind in list(self._heaps) if (flow := self._first_flow(kind))}

    def _first_flow(self, kind: Hashable) -> Flow[Item] | None:
        """Return the flow with the smallest tag among those with unfinished items of a kind."""
        heap = self._heaps.get(kind, [])
        while heap:
            tag, number, flow = heap[0]
            entries = flow.entries[kind]
            while entries and self._is_finished(flow.first(kind).item):
                self._pop(flow, kind)
            if not entries:
                del flow.entries[kind]
                heapq.heappop(heap)
            elif (tag, number) != (flow.tag, first := flow.first(kind).number):
                heapq.heapreplace(heap, (flow.tag, first, flow))
            else:
                return flow
        self._heaps.pop(kind, None)
        return None

    def _remove(self, entry: Entry[Item]) -> None:
        if entry.flow is not None:
            del entry.flow.entries[entry.kind][entry.number]
            self._leave(entry, entry.flow)
            self._start_over_if_empty()

    def _start_over_if_empty(self) -> None:
        """Forget what clients have used once no client waits, and none is served."""
        if not self._n_waiting and not self._is_serving():
            self._flows.clear()
            self._heaps.clear()
            self._virtual_time = 0

    def _pop(self, flow: Flow[Item], kind: Hashable) -> None:
        _, entry = flow.entries[kind].popitem(last=False)
        self._leave(entry, flow)

    def _leave(self, entry: Entry[Item], flow: Flow[Item]) -> None:
        """Stop counting an item as waiting."""
        entry.flow = None
        del entry.item  # the item refers to the entry: no cycle may keep a request in memory
        self._n_waiting -= 1
        self.waiting_cost -= entry.cost
        flow.waiting = flow.waiting.plus(-entry.cost, -1)
        if not flow.waiting.items:
            del self._busy[flow.client]


URGENT = ("urgent",)
"""Stands for the clients of urgent items in a prediction."""


class TwoLevelQueue(Generic[Item]):
    """A queue of urgent and normal items, each level fair to all clients; see ``FairQueue``."""

    def __init__(
        self,
        is_finished: Callable[[Item], bool] = lambda item: False,
        is_serving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._urgent: FairQueue[Item] = FairQueue(is_finished, is_serving)
        self._normal: FairQueue[Item] = FairQueue(is_finished, is_serving)
        self._urgent_lead = 0
        """Cost of urgent items minus cost of normal items, of those taken while both levels had items."""

    def __len__(self) -> int:
        return len(self._urgent) + len(self._normal)

    def put(
        self,
        item: Item,
        cost: int,
        *,
        client: Hashable = "",
        kind: Hashable = "",
        size: int | None = None,
        urgent: bool = False,
    ) -> Callable[[], None]:
        """Add an item as ``FairQueue.put`` does."""
        level = self._urgent if urgent else self._normal
        return level.put(item, cost, client=client, kind=kind, size=size)

    def next_kind(self) -> Any:
        """Return the kind of the next item; None if nothing is waiting."""
        return self._next_level().next_kind()

    def take(self, budget: int, accepts: Callable[[Hashable], bool] = anyone) -> list[Item]:
        """Remove and return the next items, all of one kind and level; see ``FairQueue.take``."""
        return self._take_by(lambda level: level.take(budget, accepts))

    def take_more(
        self, kind: Hashable, budget: int, accepts: Callable[[Hashable], bool] = anyone
    ) -> list[Item]:
        """Remove and return the next items if they are of this kind; see ``FairQueue.take_more``."""
        return self._take_by(lambda level: level.take_more(kind, budget, accepts))

    def costs_before(
        self,
        client: Hashable,
        work: Work,
        expected: Mapping[Hashable, Work] | None = None,
        overtaken: float = math.inf,
    ) -> dict[Hashable, float]:
        """Predict the cost of everything that precedes the last of some new normal items, by client.

        The cost of urgent items is that of ``URGENT``.
        """
        costs = self._normal.costs_before(client, work, expected, overtaken)
        urgent = min(self._urgent.waiting_cost, sum(costs.values()) + work.cost)
        return {**costs, URGENT: urgent} if urgent else costs

    def take_early(self, budget: int, accepts: Callable[[Hashable, Any], bool], lead: int = 0) -> list[Item]:
        """Remove and return an item of the next level; see ``FairQueue.take_early``."""
        return self._take_by(lambda level: level.take_early(budget, accepts, lead))

    def take_early_urgent(self, budget: int, accepts: Callable[[Hashable, Any], bool]) -> list[Item]:
        """Remove and return an urgent item for service that no normal item can use, so that it counts for
        nothing between the levels; see ``FairQueue.take_early``."""
        return self._urgent.take_early(budget, accepts)

    def _take_by(self, take: Callable[[FairQueue[Item]], list[Item]]) -> list[Item]:
        level = self._next_level()
        both_wait = all(level.next_kind() is not None for level in (self._urgent, self._normal))
        taken_before = level.taken_cost
        items = take(level)
        cost = level.taken_cost - taken_before
        self._urgent_lead += cost if level is self._urgent else -cost
        if not both_wait:
            self._urgent_lead = 0
        return items

    def _next_level(self) -> FairQueue[Item]:
        has_urgent, has_normal = (level.next_kind() is not None for level in (self._urgent, self._normal))
        return self._urgent if has_urgent and (self._urgent_lead <= 0 or not has_normal) else self._normal
