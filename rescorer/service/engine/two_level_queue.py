"""Two fair queues in one: urgent items are served first, but get at most half of the service.

Urgent work is what fallbacks need shortly before a deadline. If it always preceded other work, a client that
sends more than the server can do and permits a fallback would keep all others from being served.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic

from rescorer.service.engine.fair_queue import FairQueue, Item, Work


class TwoLevelQueue(Generic[Item]):
    """A queue of urgent and normal items, each level fair to all clients; see ``FairQueue``."""

    def __init__(self, is_finished: Callable[[Item], bool] = lambda item: False) -> None:
        self._urgent: FairQueue[Item] = FairQueue(is_finished)
        self._normal: FairQueue[Item] = FairQueue(is_finished)
        self._urgent_lead = 0
        """Cost of what the urgent level has been served more than the normal one while both had items."""

    def __len__(self) -> int:
        return len(self._urgent) + len(self._normal)

    def put(
        self, item: Item, cost: int, *, client: Hashable = "", kind: Hashable = "", urgent: bool = False
    ) -> Callable[[], None]:
        """Add an item; return a function that removes it, if it still waits."""
        level = self._urgent if urgent else self._normal
        return level.put(item, cost, client=client, kind=kind)

    def take(self, budget: int) -> list[Item]:
        """Remove and return the next items, all of one kind and level; see ``FairQueue.take``."""
        return self._take_by(lambda level: level.take(budget))

    def take_more(self, kind: Hashable, budget: int) -> list[Item]:
        """Remove and return the next items if they are of this kind; see ``FairQueue.take_more``."""
        return self._take_by(lambda level: level.take_more(kind, budget))

    def cost_before(
        self, client: Hashable, work: Work, expected: Mapping[Hashable, Work] | None = None
    ) -> float:
        """Predict the cost of everything that precedes the last of some new normal items."""
        before = self._normal.cost_before(client, work, expected)
        return before + min(self._urgent.waiting_cost, before + work.cost)

    def _take_by(self, take: Callable[[FairQueue[Item]], list[Item]]) -> list[Item]:
        has_urgent, has_normal = (level.next_kind() is not None for level in (self._urgent, self._normal))
        is_urgent = has_urgent and (self._urgent_lead <= 0 or not has_normal)
        level = self._urgent if is_urgent else self._normal
        taken_before = level.taken_cost
        items = take(level)
        if has_urgent and has_normal:
            cost = level.taken_cost - taken_before
            self._urgent_lead += cost if is_urgent else -cost
        else:
            self._urgent_lead = 0
        return items
