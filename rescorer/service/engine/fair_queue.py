"""Owns the order in which waiting work is served: fair between clients by cost, and in batches of one kind.

Start-time fair queueing (Goyal, Vin and Cheng 1996): an item's tag is where its client's share of the service
had got to when it came, and the smallest tag is served first. A client that sends much only waits behind
itself.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")

URGENT = 1 << 62
"""Taken off the number of an urgent item, which so goes before others of its tag."""
FORGET_ABOVE = 1024
"""Clients remembered before those are dropped whose past no longer matters."""
SWEEP_ABOVE = 256
"""Dead items left in the heaps, if they are more than the living, before they are swept out."""


class FairQueue(Generic[Item]):
    """Items of several clients and kinds.

    Args:
        dead: says of an item that nobody waits for it any more; such an item is dropped when it is met.
    """

    def __init__(self, dead: Callable[[Item], bool] = lambda item: False) -> None:
        self._dead = dead
        self._heaps: dict[Hashable, list[tuple[float, int, int, Item]]] = {}  # by kind: tag, number, cost
        self._served_to = 0.0
        self._sent_to: dict[Hashable, float] = {}
        self._numbers = itertools.count()
        self._given_up = 0

    def __len__(self) -> int:
        """Items, dead ones not yet dropped among them."""
        return sum(len(heap) for heap in self._heaps.values())

    def put(
        self, item: Item, cost: int, *, client: Hashable = "", kind: Hashable = "", urgent: bool = False
    ) -> None:
        """Adds an item.

        Args:
            cost: of serving it, above 0.
            kind: only items of one kind are taken together.
            urgent: it goes before what waits, whoever sent it.
        """
        tag = self._served_to
        if not urgent:
            tag = max(tag, self._sent_to.get(client, 0.0))
            self._sent_to[client] = tag + cost
        number = next(self._numbers)
        entry = (tag, number - URGENT if urgent else number, cost, item)
        heapq.heappush(self._heaps.setdefault(kind, []), entry)
        if len(self._sent_to) > FORGET_ABOVE:
            self._sent_to = {name: to for name, to in self._sent_to.items() if to > self._served_to}

    def take(self, budget: int) -> list[Item]:
        """The next items, all of one kind; together they cost at most ``budget``, unless the first does not.

        Empty where nothing waits.
        """
        return self._taken(self._next_kind(), budget, at_least=1)

    def more(self, kind: Hashable, budget: int) -> list[Item]:
        """The next items where they are of this kind and cost at most ``budget`` together."""
        return self._taken(kind, budget, at_least=0) if kind == self._next_kind() else []

    def _next_kind(self) -> Hashable:
        """Of the item that is the next; None where nothing waits."""
        for heap in self._heaps.values():
            self._drop_dead(heap)
        self._heaps = {kind: heap for kind, heap in self._heaps.items() if heap}
        return min(self._heaps, key=lambda kind: self._heaps[kind][0][:2], default=None)

    def _taken(self, kind: Hashable, budget: int, at_least: int) -> list[Item]:
        heap = self._heaps.get(kind, [])
        taken: list[Item] = []
        while heap and (len(taken) < at_least or heap[0][2] <= budget):
            tag, _, cost, item = heapq.heappop(heap)
            self._served_to = max(self._served_to, tag)
            budget -= cost
            taken.append(item)
            self._drop_dead(heap)
        return taken

    def give_up(self) -> None:
        """Says that an item has died in the queue; now and then they are swept out."""
        self._given_up += 1
        if self._given_up > SWEEP_ABOVE and 2 * self._given_up > len(self):
            self._given_up = 0
            for heap in self._heaps.values():
                heap[:] = [entry for entry in heap if not self._dead(entry[-1])]
                heapq.heapify(heap)

    def _drop_dead(self, heap: list[tuple[float, int, int, Item]]) -> None:
        while heap and self._dead(heap[0][-1]):
            heapq.heappop(heap)
            self._given_up = max(0, self._given_up - 1)
