"""Share the places of streams that stay open among clients, so that few clients cannot lock others out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from rescorer.errors import Overloaded

RETRY_AFTER_S = 1.0
REVOKED_S = 1.0
"""How long a stream that has lost its place may take to end. A client that does not read can make it wait for
ever; then the stream is reset."""


class StreamSlot:
    """The place of one open stream, held by the task that handles it."""

    def __init__(self, client: Hashable) -> None:
        self.client = client
        self.idle_since: float | None = time.monotonic()
        """Since when the stream waits for its client; None while a message is being answered."""
        self.revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when another client gets this place; the stream should then end."""
        self._task = asyncio.current_task()
        self._reset: asyncio.TimerHandle | None = None

    def mark_idle(self) -> None:
        self.idle_since = time.monotonic()

    def mark_busy(self) -> None:
        self.idle_since = None

    def revoke(self) -> None:
        self.revoked.set_result(None)
        if self._task is not None:
            self._reset = asyncio.get_running_loop().call_later(REVOKED_S, self._task.cancel)

    def release(self) -> None:
        if self._reset is not None:
            self._reset.cancel()


class StreamSlots:
    """The places for open streams of one kind.

    When all are taken and a client asks for one more, a client that would keep at least as many as the asking
    one loses a place: the client with the most, and of its streams the one that has been idle longest.

    Args:
        name: what the streams are called in messages.
        capacity, per_client: largest number of streams, over all clients and per client.
        settings: names of the settings that bound them, for the messages.
    """

    def __init__(self, name: str, capacity: int, per_client: int, settings: tuple[str, str]) -> None:
        self._name, self._capacity, self._per_client = name, capacity, per_client
        self._capacity_setting, self._client_setting = settings
        self._by_client: dict[Hashable, set[StreamSlot]] = {}
        self.held = 0

    @contextmanager
    def hold(self, client: Hashable) -> Iterator[StreamSlot]:
        """Take a place for the duration of the ``with`` block.

        Raises:
            Overloaded: If the client has too many streams, or no other client can lose one.
        """
        own = len(self._by_client.get(client, ()))
        if own >= self._per_client:
            reason = f"this client has {own} {self._name} open; expected at most {self._per_client} "
            raise Overloaded(reason + f"({self._client_setting})", retry_after_s=RETRY_AFTER_S)
        if self.held >= self._capacity:
            self._revoke_from_largest(own)
        slot = StreamSlot(client)
        self._by_client.setdefault(client, set()).add(slot)
        self.held += 1
        try:
            yield slot
        finally:
            slot.release()
            self._remove(slot)

    def _revoke_from_largest(self, own: int) -> None:
        """Revoke a place of another client for one that has ``own`` already."""
        candidates = [
            (len(slots), -slot.idle_since, slot)
            for slots in self._by_client.values()
            if len(slots) >= own + 2
            for slot in slots
            if slot.idle_since is not None
        ]
        if not candidates:
            reason = f"{self.held} {self._name} are open; expected at most {self._capacity} "
            raise Overloaded(
                f"{reason}({self._capacity_setting}); try again later", retry_after_s=RETRY_AFTER_S
            )
        _, _, slot = max(candidates, key=lambda candidate: candidate[:2])
        self._remove(slot)
        slot.revoke()

    def _remove(self, slot: StreamSlot) -> None:
        slots = self._by_client.get(slot.client, set())
        if slot in slots:
            slots.remove(slot)
            self.held -= 1
        if not slots:
            self._by_client.pop(slot.client, None)
