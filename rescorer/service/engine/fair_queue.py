"""A fair queue of items that are served in batches; all items of a batch are of the same kind.

It uses start-time fair queueing (Goyal, Vin and Cheng 1996): each item gets a tag, the virtual time at which
its client's share of the service reaches it, and the item with the smallest tag is served first. A client
that sends much work delays only itself.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Entry = tuple[float, int, int, Item]
"""Tag, sequence number, cost and item."""

URGENT = 1 << 62
"""Subtracted from the sequence number of an urgent item, so that it precedes other items of the same tag."""
MAX_REMEMBERED_CLIENTS = 1024
"""Number of remembered clients above which those without influence on future tags are forgotten."""
SWEEP_ABOVE = 256
"""Number of finished items above which they are removed from the heaps, if they are the majority."""


class FairQueue(Generic[Item]):
    """A queue of items of several clients and kinds.

    Args:
        is_finished: whether an item no longer needs to be served; such an item is skipped.
    """

    def __init__(self, is_finished: Callable[[Item], bool] = lambda item: False) -> None:
        self._is_finished = is_finished
        self._heaps: dict[Hashable, list[Entry[Item]]] = {}  # by kind
        self._virtual_time = 0.0
        self._next_tags: dict[Hashable, float] = {}  # by client: the earliest tag of its next item
        self._numbers = itertools.count()
        self._n_finished = 0

    def __len__(self) -> int:
        """Number of items, including finished ones that have not been removed yet."""
        return sum(len(heap) for heap in self._heaps.values())

    def put(
        self, item: Item, cost: int, *, client: Hashable = "", kind: Hashable = "", urgent: bool = False
    ) -> None:
        """Add an item.

        Args:
            cost: cost of serving the item, above 0.
            kind: only items of the same kind are taken together.
            urgent: serve the item before all waiting ones, whichever client sent it.
        """
        tag = self._virtual_time
        if not urgent:
            tag = max(tag, self._next_tags.get(client, 0.0))
            self._next_tags[client] = tag + cost
        number = next(self._numbers)
        entry = (tag, number - URGENT if urgent else number, cost, item)
        heapq.heappush(self._heaps.setdefault(kind, []), entry)
        if len(self._next_tags) > MAX_REMEMBERED_CLIENTS:
            self._next_tags = {
                name: next_tag for name, next_tag in self._next_tags.items() if next_tag > self._virtual_time
            }

    def take(self, budget: int) -> list[Item]:
        """Remove and return the next items, all of one kind, that cost at most ``budget`` together.

        The first item is returned even if it alone costs more. The result is empty if nothing is waiting.
        """
        return self._take(self._next_kind(), budget, at_least=1)

    def take_more(self, kind: Hashable, budget: int) -> list[Item]:
        """Remove and return the next items if they are of this kind and cost at most ``budget`` together."""
        return self._take(kind, budget, at_least=0) if kind == self._next_kind() else []

    def _next_kind(self) -> Hashable:
        """Return the kind of the next item; None if nothing is waiting."""
        for heap in self._heaps.values():
            self._skip_finished(heap)
        self._heaps = {kind: heap for kind, heap in self._heaps.items() if heap}
        return min(self._heaps, key=lambda kind: self._heaps[kind][0][:2], default=None)

    def _take(self, kind: Hashable, budget: int, at_least: int) -> list[Item]:
        heap = self._heaps.get(kind, [])
        items: list[Item] = []
        while heap and (len(items) < at_least or heap[0][2] <= budget):
            tag, _, cost, item = heapq.heappop(heap)
            self._virtual_time = max(self._virtual_time, tag)
            budget -= cost
            items.append(item)
            self._skip_finished(heap)
        return items

    def count_finished(self) -> None:
        """Record that a waiting item has finished; remove the finished items once they are the majority."""
        self._n_finished += 1
        if self._n_finished > SWEEP_ABOVE and 2 * self._n_finished > len(self):
            self._n_finished = 0
            for heap in self._heaps.values():
                heap[:] = [entry for entry in heap if not self._is_finished(entry[-1])]
                heapq.heapify(heap)

    def _skip_finished(self, heap: list[Entry[Item]]) -> None:
        while heap and self._is_finished(heap[0][-1]):
            heapq.heappop(heap)
            self._n_finished = max(0, self._n_finished - 1)
