"""Bounded quantities that clients share: lists, tokens and bytes in flight."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

SETTINGS = {
    "lists": ("max_in_flight_lists", "max_client_lists"),
    "tokens": ("max_in_flight_tokens", "max_in_flight_tokens"),
    "bytes": ("max_in_flight_bytes", "max_client_bytes"),
}
"""Names of the settings that bound each quantity, over all clients and per client, for the messages of
refusals."""


class Quota:
    """A bounded quantity that clients share.

    While several clients are active, none may hold more than is still free (dynamic thresholds, Choudhury and
    Hahne 1998). If n clients take as much as they can, each holds 1/(n+1) of the capacity, and the same
    amount stays free for another client.

    Args:
        name: name of the quantity, a key of ``SETTINGS``.
        capacity: bound over all clients; a single larger amount is admitted if nothing else is held.
        per_client: bound per client, with the same exception; None: the capacity.
    """

    def __init__(self, name: str, capacity: int, per_client: int | None = None) -> None:
        self.name, self.capacity = name, capacity
        self._capacity_setting, self._client_setting = SETTINGS[name]
        self._per_client = capacity if per_client is None else per_client
        self.held = 0
        self._held_by: dict[Hashable, int] = {}

    def reason_to_refuse(self, client: Hashable, amount: int, *, shared: bool, reserved: int = 0) -> str:
        """Return why an amount is refused; empty if it is admitted.

        Args:
            shared: whether other clients are active.
            reserved: amount to keep free for another client, at most ``max_reserved``.
        """
        own = self._held_by.get(client, 0)
        taken = self.held + min(reserved, self.max_reserved)
        if taken + amount > self.capacity and taken:
            kept = f", {taken - self.held} are kept free for a call that waits" if reserved else ""
            return (
                f"{self.held} {self.name} are in flight{kept} and {amount} more were requested; "
                f"expected at most {self.capacity} ({self._capacity_setting})"
            )
        request = f"this client has {own} {self.name} in flight and requested {amount} more"
        if own and own + amount > self._per_client:
            return f"{request}; expected at most {self._per_client} ({self._client_setting})"
        free = self.capacity - taken
        if shared and own and own + amount > free:
            return (
                f"{request}; while other clients are active, expected at most as many as are free, "
                f"{free} of {self.capacity} ({self._capacity_setting})"
            )
        return ""

    @property
    def max_reserved(self) -> int:
        """Largest amount that is kept free for a client that waits: half of the capacity, lest large requests
        that follow one another leave too little to all other clients."""
        return self.capacity // 2

    def has(self, client: Hashable) -> bool:
        """Whether a client holds an amount."""
        return client in self._held_by

    def has_others(self, client: Hashable) -> bool:
        """Whether a client other than this one holds an amount."""
        return has_other_keys(self._held_by, client)

    def add(self, client: Hashable, amount: int) -> None:
        """Take an amount, or return it if ``amount`` is negative."""
        self.held += amount
        own = self._held_by.get(client, 0) + amount
        if own:
            self._held_by[client] = own
        else:
            self._held_by.pop(client, None)


def has_other_keys(mapping: Mapping[Hashable, object], key: Hashable) -> bool:
    """Whether a mapping has a key other than this one, in constant time."""
    return len(mapping) > (key in mapping)
