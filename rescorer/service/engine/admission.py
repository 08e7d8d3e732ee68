"""Decide which calls are admitted, by what is in flight, whose it is, and whether a deadline can be met.

Calls are counted here rather than by gRPC, whose own limit would also refuse health checks.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from rescorer.errors import Overloaded

REFUSED_MEMORY_S = 10.0
"""How long after a refusal other clients leave capacity for the refused client."""
AVERAGING_TIME_S = 2.0
"""Time constant of the moving average of the throughput."""
USABLE_DEADLINE_SHARE = 2 / 3
"""Largest predicted scoring time, as a share of the time to the deadline. Predictions are uncertain, and
under overload every admitted call takes about as long as this limit permits; a call that misses its deadline
has delayed others for nothing."""
RETRY_BOUNDS_S = (0.05, 5.0)
"""Bounds of the time after which a refused caller should try again."""

SETTINGS = {
    "lists": ("max_in_flight_lists", "max_client_lists"),
    "tokens": ("max_in_flight_tokens", "max_in_flight_tokens"),
}
"""Names of the settings that bound each quantity, over all clients and per client, for the messages of
refusals."""


class Throughput:
    """Estimate of the amount scored per second, a moving average over the time in which there is work.

    Large amounts count more than small ones: under load, batches are large and more efficient, while a list
    of a few words takes its time whatever the throughput is.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._weighted_amount = self._weighted_s = 0.0
        self._since: float | None = None

    def mark_busy(self) -> None:
        """Record that there is work from now on, if there was none."""
        if self._since is None:
            self._since = self._clock()

    def mark_idle(self) -> None:
        """Record that there is no work now."""
        self._since = None

    def record(self, amount: float) -> None:
        """Record an amount that was scored since the previous call, or since the work began."""
        now = self._clock()
        seconds = now - (now if self._since is None else self._since)
        decay = math.exp(-seconds / AVERAGING_TIME_S)
        self._weighted_amount = self._weighted_amount * decay + amount * amount
        self._weighted_s = self._weighted_s * decay + amount * seconds
        self._since = now

    def seconds_for(self, amount: float) -> float:
        """Predict how long an amount will take; 0 before anything is recorded."""
        return amount * self._weighted_s / self._weighted_amount if self._weighted_amount else 0.0


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

    def reason_to_refuse(self, client: Hashable, amount: int, *, shared: bool) -> str:
        """Return why an amount is refused; empty if it is admitted.

        Args:
            shared: whether other clients are active.
        """
        own = self._held_by.get(client, 0)
        if self.held + amount > self.capacity and self.held:
            return (
                f"{self.held} {self.name} are in flight and {amount} more were requested; "
                f"expected at most {self.capacity} ({self._capacity_setting})"
            )
        request = f"this client has {own} {self.name} in flight and requested {amount} more"
        if own and own + amount > self._per_client:
            return f"{request}; expected at most {self._per_client} ({self._client_setting})"
        free = self.capacity - self.held
        if shared and own and own + amount > free:
            return (
                f"{request}; while other clients are active, expected at most as many as are free, "
                f"{free} of {self.capacity} ({self._capacity_setting})"
            )
        return ""

    def has_others(self, client: Hashable) -> bool:
        """Whether a client other than this one holds an amount."""
        return bool(self._held_by.keys() - {client})

    def add(self, client: Hashable, amount: int) -> None:
        """Take an amount, or return it if ``amount`` is negative."""
        self.held += amount
        own = self._held_by.get(client, 0) + amount
        if own:
            self._held_by[client] = own
        else:
            self._held_by.pop(client, None)


class Ticket:
    """Amounts that an admitted call holds; ``Admission.correct`` updates them once the tokens are counted."""

    def __init__(self, client: Hashable, lists: int, tokens: int) -> None:
        self.client, self.lists, self.tokens = client, lists, tokens


class Admission:
    """Admit or refuse calls.

    Args:
        lists: quota of lists in flight.
        tokens: quota of tokens in flight.
        min_tokens: number of tokens in flight below which no call is refused because of its deadline.
        throughput: estimate of the tokens scored per second.
    """

    def __init__(
        self, lists: Quota, tokens: Quota, min_tokens: int, throughput: Throughput | None = None
    ) -> None:
        self.lists, self.tokens = lists, tokens
        self.throughput = throughput or Throughput()
        self._min_tokens = min_tokens
        self._refused_at: dict[Hashable, float] = {}  # by client, oldest first
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def admit(
        self,
        client: Hashable,
        lists: int,
        tokens: int,
        *,
        remaining_s: float = math.inf,
        wait: bool = False,
    ) -> AsyncIterator[Ticket]:
        """Reserve capacity for a call for the duration of the ``with`` block.

        Args:
            tokens: estimated number of tokens to score.
            remaining_s: time to the caller's deadline.
            wait: wait for capacity instead of refusing the call.

        Raises:
            Overloaded: If there is no capacity, or the deadline would probably be missed.
        """
        ticket = Ticket(client, lists, tokens)
        async with self._changed:
            if wait:
                await self._changed.wait_for(lambda: self._fits(ticket))
            elif reason := self._reason_to_refuse(ticket, remaining_s):
                self._remember_refused(client)
                raise Overloaded(f"{reason}; try again later", retry_after_s=self.retry_after_s())
            self.throughput.mark_busy()
            self.lists.add(client, lists)
            self.tokens.add(client, ticket.tokens)
        try:
            yield ticket
        finally:
            self.lists.add(client, -ticket.lists)
            self.tokens.add(client, -ticket.tokens)
            if not self.lists.held and not self.tokens.held:
                self.throughput.mark_idle()
            async with self._changed:
                self._changed.notify_all()

    def correct(self, ticket: Ticket, tokens: int) -> None:
        """Replace the estimated number of tokens of a call by the counted one."""
        self.tokens.add(ticket.client, tokens - ticket.tokens)
        ticket.tokens = tokens

    def predicted_wait_s(self) -> float:
        """Predict how long a call that arrives now would wait until its scoring begins."""
        return self.throughput.seconds_for(self.tokens.held)

    def retry_after_s(self) -> float:
        """Seconds until a refused caller may find capacity; randomised so that callers do not all return
        together."""
        low, high = RETRY_BOUNDS_S
        return min(max(self.predicted_wait_s(), low), high) * random.uniform(0.8, 1.2)

    def _reason_to_refuse(self, ticket: Ticket, remaining_s: float) -> str:
        shared = self._has_other_clients(ticket.client)
        for quota, amount in ((self.lists, ticket.lists), (self.tokens, ticket.tokens)):
            if reason := quota.reason_to_refuse(ticket.client, amount, shared=shared):
                return reason
        wait_s = self.throughput.seconds_for(self.tokens.held + ticket.tokens)
        if self.tokens.held >= self._min_tokens and wait_s > USABLE_DEADLINE_SHARE * remaining_s:
            return f"an answer would take about {wait_s:.2f} s, but the deadline is in {remaining_s:.2f} s"
        return ""

    def _fits(self, ticket: Ticket) -> bool:
        """Whether there is capacity for a waiting call; if not, other clients have to leave some for it."""
        if not self._reason_to_refuse(ticket, math.inf):
            return True
        self._remember_refused(ticket.client)
        return False

    def _remember_refused(self, client: Hashable) -> None:
        self._refused_at.pop(client, None)  # reinsert at the end, so that the oldest come first
        self._refused_at[client] = time.monotonic()

    def _has_other_clients(self, client: Hashable) -> bool:
        """Whether another client has lists in flight or was refused recently."""
        now = time.monotonic()
        refused_at = self._refused_at
        while refused_at and now - refused_at[oldest := next(iter(refused_at))] > REFUSED_MEMORY_S:
            del refused_at[oldest]
        return self.lists.has_others(client) or bool(refused_at.keys() - {client})
