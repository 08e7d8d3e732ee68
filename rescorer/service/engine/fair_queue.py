"""A fair queue of items that are served in batches; all items of a batch are of the same kind.

It uses start-time fair queueing (Goyal, Vin and Cheng 1996): each client has a tag, the virtual time at which
its share of the service reaches its next item, and the client with the smallest tag is served first. A client
that sends much work delays only itself, and what precedes a new item follows from the tags.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

MAX_REMEMBERED_CLIENTS = 1024
"""Number of remembered clients above which those without influence on future tags are forgotten."""


class Work(NamedTuple):
    """The cost of some items, and their number."""

    cost: int = 0
    items: int = 0

    def plus(self, cost: int, items: int) -> Work:
        return Work(self.cost + cost, self.items + items)

    def due_within(self, span: float) -> float:
        """Return the cost of the items that are due within a span of virtual time, its end included.

        The first item is due at the beginning, and each of the others when the previous one is paid. They are
        assumed to cost the same. A cost without items, such as that of a large request without lists, is due
        never.
        """
        if span < 0 or not self.cost or not self.items:
            return 0.0
        cost_per_item = self.cost / self.items
        return min(self.cost, (span // cost_per_item + 1) * cost_per_item)


NO_WORK = Work()


class Flow(Generic[Item]):
    """The waiting items of one client, by kind and in the order of their arrival."""

    def __init__(self, client: Hashable) -> None:
        self.client = client
        self.tag = 0
        """Virtual time at which the next item is due."""
        self.waiting = NO_WORK
        self.entries: dict[Hashable, deque[Entry[Item]]] = {}


class Entry(Generic[Item]):
    """The place of an item in the queue."""

    __slots__ = ("cost", "flow", "item", "kind", "number")

    def __init__(self, number: int, item: Item, cost: int, kind: Hashable, flow: Flow[Item]) -> None:
        self.number, self.item, self.cost, self.kind = number, item, cost, kind
        self.flow: Flow[Item] | None = flow
        """None: the item no longer waits."""


class FairQueue(Generic[Item]):
    """A queue of items of several clients and kinds.

    Args:
        is_finished: whether an item no longer needs to be served; such an item is skipped.
    """

    def __init__(self, is_finished: Callable[[Item], bool] = lambda item: False) -> None:
        self._is_finished = is_finished
        self._virtual_time = 0
        self._flows: dict[Hashable, Flow[Item]] = {}  # by client
        self._busy: dict[Hashable, Flow[Item]] = {}  # by client: those with waiting items
        self._heaps: dict[Hashable, list[tuple[int, int, Flow[Item]]]] = {}
        """By kind: the flows that have had such items since they were last looked at, with their tags and the
        numbers of their first items, both of which may have grown since."""
        self._numbers = itertools.count()
        self._n_waiting = 0
        self.waiting_cost = self.taken_cost = 0
        """Cost of the waiting items, and of all that have ever been taken."""

    def __len__(self) -> int:
        """Number of items, including finished ones that have not been skipped yet."""
        return self._n_waiting

    def put(self, item: Item, cost: int, *, client: Hashable = "", kind: Hashable = "") -> Callable[[], None]:
        """Add an item; return a function that removes it, if it still waits, at no cost to its client.

        Args:
            cost: cost of serving the item, above 0.
            kind: only items of the same kind are taken together.
        """
        flow = self._flow_of(client)
        if not flow.waiting.items:
            flow.tag = max(flow.tag, self._virtual_time)
            self._busy[client] = flow
        entry = Entry(next(self._numbers), item, cost, kind, flow)
        if kind not in flow.entries:
            flow.entries[kind] = deque()
            heapq.heappush(self._heaps.setdefault(kind, []), (flow.tag, entry.number, flow))
        flow.entries[kind].append(entry)
        flow.waiting = flow.waiting.plus(cost, 1)
        self._n_waiting += 1
        self.waiting_cost += cost
        return partial(self._remove, entry)

    def take(self, budget: int) -> list[Item]:
        """Remove and return the next items, all of one kind, that cost at most ``budget`` together.

        The first item is returned even if it alone costs more. The result is empty if nothing is waiting.
        """
        return self._take(self.next_kind(), budget, at_least=1)

    def take_more(self, kind: Hashable, budget: int) -> list[Item]:
        """Remove and return the next items if they are of this kind and cost at most ``budget`` together."""
        return self._take(kind, budget, at_least=0) if kind == self.next_kind() else []

    def next_kind(self) -> Hashable:
        """Return the kind of the next item; None if nothing is waiting."""
        firsts = {kind: flow for kind in list(self._heaps) if (flow := self._first_flow(kind))}
        return min(
            firsts, key=lambda kind: (firsts[kind].tag, firsts[kind].entries[kind][0].number), default=None
        )

    def cost_before(
        self, client: Hashable, work: Work, expected: Mapping[Hashable, Work] | None = None
    ) -> float:
        """Predict the cost of everything that will be served before the last of some new items.

        Of another client, that is what is due by its tag until the last new item is due. If all items of a
        client cost the same and nothing else arrives, the prediction is exact; otherwise it is off by less
        than an item per client.

        Args:
            work: the new items. All but the last are included in the result.
            expected: work that clients will add before the new items.
        """
        expected = expected or {}
        own = self._work_of(client, expected)
        first_items_cost = work.cost * (work.items - 1) / work.items if work.items else 0.0
        before = own.cost + first_items_cost
        due = self._tag_of(client) + before
        for other in (self._busy.keys() | expected.keys()) - {client}:
            before += self._work_of(other, expected).due_within(due - self._tag_of(other))
        return before

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

    def _take(self, kind: Hashable, budget: int, at_least: int) -> list[Item]:
        items: list[Item] = []
        while (flow := self._first_flow(kind)) is not None:
            entry = flow.entries[kind][0]
            if len(items) >= at_least and entry.cost > budget:
                break
            items.append(entry.item)
            self._pop(flow, kind)
            self._virtual_time = max(self._virtual_time, flow.tag)
            flow.tag += entry.cost
            budget -= entry.cost
            self.taken_cost += entry.cost
        self._start_over_if_empty()
        return items

    def _first_flow(self, kind: Hashable) -> Flow[Item] | None:
        """Return the flow with the smallest tag among those with unfinished items of a kind."""
        heap = self._heaps.get(kind, [])
        while heap:
            tag, number, flow = heap[0]
            entries = flow.entries[kind]
            while entries and self._is_finished(entries[0].item):
                self._pop(flow, kind)
            if not entries:
                del flow.entries[kind]
                heapq.heappop(heap)
            elif (tag, number) != (flow.tag, entries[0].number):
                heapq.heapreplace(heap, (flow.tag, entries[0].number, flow))
            else:
                return flow
        self._heaps.pop(kind, None)
        return None

    def _remove(self, entry: Entry[Item]) -> None:
        if entry.flow is not None:
            entry.flow.entries[entry.kind].remove(entry)
            self._leave(entry, entry.flow)
            self._start_over_if_empty()

    def _start_over_if_empty(self) -> None:
        """Forget what clients have used once nobody waits for it."""
        if not self._n_waiting:
            self._flows.clear()
            self._heaps.clear()
            self._virtual_time = 0

    def _pop(self, flow: Flow[Item], kind: Hashable) -> None:
        self._leave(flow.entries[kind].popleft(), flow)

    def _leave(self, entry: Entry[Item], flow: Flow[Item]) -> None:
        """Stop counting an item as waiting."""
        entry.flow = None
        del entry.item  # which has the function that removes it: no cycle may keep a request in memory
        self._n_waiting -= 1
        self.waiting_cost -= entry.cost
        flow.waiting = flow.waiting.plus(-entry.cost, -1)
        if not flow.waiting.items:
            del self._busy[flow.client]
