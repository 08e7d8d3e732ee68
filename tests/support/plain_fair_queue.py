"""Slow but obvious twin of the fair queue: all items in one list, served one at a time by the definition."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PlainFairQueue:
    waiting: list[tuple[str, int, int]] = field(default_factory=list)
    """Client, number and cost of each item, in the order of arrival."""
    tags: dict[str, int] = field(default_factory=dict)
    virtual_time: int = 0

    def put(self, client: str, number: int, cost: int) -> None:
        if all(other != client for other, _, _ in self.waiting):
            self.tags[client] = max(self.tags.get(client, 0), self.virtual_time)
        self.waiting.append((client, number, cost))

    def take(self) -> tuple[str, int, int]:
        """Serve the client with the smallest tag; among equals, the one whose first item came first."""
        firsts: dict[str, tuple[str, int, int]] = {}
        for entry in self.waiting:
            firsts.setdefault(entry[0], entry)
        return self.serve(*min(firsts.values(), key=lambda entry: (self.tags[entry[0]], entry[1])))

    def serve(self, client: str, number: int, cost: int) -> tuple[str, int, int]:
        self.waiting.remove((client, number, cost))
        self.virtual_time = max(self.virtual_time, self.tags[client])
        self.tags[client] += cost
        self.start_over_if_empty()
        return client, number, cost

    def remove(self, entry: tuple[str, int, int]) -> None:
        if entry in self.waiting:
            self.waiting.remove(entry)
            self.start_over_if_empty()

    def start_over_if_empty(self) -> None:
        if not self.waiting:
            self.tags, self.virtual_time = {}, 0

    def cost_before(self, client: str, costs: list[int]) -> int:
        """Add items and serve all that precede the last of them; return their cost."""
        number = 1_000_000
        for cost in costs:
            self.put(client, number := number + 1, cost)
        before = 0
        while (entry := self.take())[1] != number:
            before += entry[2]
        return before
