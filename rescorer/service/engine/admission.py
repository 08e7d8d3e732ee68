"""Owns who is let in: how much may be in flight, whose it may be, and whether an answer would come in time.

Counted here and not by gRPC, whose own limit would also refuse health checks.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

from rescorer.errors import Overloaded

RECENT_S = 10.0
"""A client that was refused so long ago still counts as one that others leave room for."""
PACE_S = 2.0
"""How long the past counts for the pace."""
SURE_SHARE = 2 / 3
"""Of the time to a deadline. An answer is predicted by the pace so far, and one that came too late would have
cost others theirs: under overload all that are let in take as long as is allowed."""
RETRY_S = (0.05, 5.0)
"""Bounds of the time after which a refused caller is told to try again."""

SETTINGS = {
    "lists": ("max_in_flight_lists", "max_client_lists"),
    "tokens": ("max_in_flight_tokens", "max_in_flight_tokens"),
    "streams": ("max_streams", "max_client_streams"),
}
"""What the bounds of a quantity are called, over all clients and for each, for who is refused by them."""


class Pace:
    """How much is done a second, measured over the time there was something to do.

    Much done at once tells more than little: where calls wait, batches are large and go faster, and a list of
    a few words takes its time whatever the pace.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._done = self._seconds = 0.0
        self._since: float | None = None

    def busy(self) -> None:
        """There is something to do from now on, if there was not."""
        if self._since is None:
            self._since = self._clock()

    def idle(self) -> None:
        """There is nothing to do now."""
        self._since = None

    def did(self, amount: float) -> None:
        """So much has been done since the last time."""
        now = self._clock()
        seconds = now - (now if self._since is None else self._since)
        keep = math.exp(-seconds / PACE_S)
        self._done = self._done * keep + amount * amount
        self._seconds = self._seconds * keep + amount * seconds
        self._since = now

    def seconds_for(self, amount: float) -> float:
        """How long so much will take; 0 as long as nothing was measured."""
        return amount * self._seconds / self._done if self._done else 0.0


class Quota:
    """A quantity that is bounded in all and shared between clients.

    Where several clients ask, none may hold more than is still free (dynamic thresholds, Choudhury and Hahne
    1998): n clients that take all they can hold 1/(n+1) each, and as much is left for one that comes.

    Args:
        name: of the quantity, one of ``SETTINGS``.
        capacity: over all clients; a single amount above it is let in where nothing else is held.
        each: for one client, likewise; None: all of it.
    """

    def __init__(self, name: str, capacity: int, each: int | None = None) -> None:
        self.name, self.capacity = name, capacity
        self._of_all, self._of_each = (f" ({setting})" for setting in SETTINGS[name])
        self._each = capacity if each is None else each
        self.held = 0
        self._held_by: dict[Hashable, int] = {}

    def refusal(self, client: Hashable, amount: int, *, shared: bool) -> str:
        """Why there is no room; empty where there is."""
        own = self._held_by.get(client, 0)
        if self.held + amount > self.capacity and self.held:
            told = f"{self.held} {self.name} are in flight and {amount} come"
            return f"{told}, at most {self.capacity} may be{self._of_all}"
        told = f"{own} {self.name} of this client are in flight and {amount} come"
        if own and own + amount > self._each:
            return f"{told}, at most {self._each} may be{self._of_each}"
        if shared and own and own + amount > self.capacity - self.held:
            free = self.capacity - self.held
            return f"{told}, and others need room, too: {free} of {self.capacity} are free{self._of_all}"
        return ""

    def has_others(self, client: Hashable) -> bool:
        """Whether anybody else holds some."""
        return bool(self._held_by.keys() - {client})

    def add(self, client: Hashable, amount: int) -> None:
        """Takes room, or gives it back where ``amount`` is below 0."""
        self.held += amount
        own = self._held_by.get(client, 0) + amount
        if own:
            self._held_by[client] = own
        else:
            self._held_by.pop(client, None)


class Ticket:
    """What one call holds; corrected when its words are counted."""

    def __init__(self, client: Hashable, lists: int, tokens: int) -> None:
        self.client, self.lists, self.tokens = client, lists, tokens


class Admission:
    """Lets calls in.

    Args:
        lists, tokens: that may be in flight.
        min_tokens: below so many in flight nobody is refused for the time it would take.
        pace: how fast tokens are scored.
    """

    def __init__(self, lists: Quota, tokens: Quota, min_tokens: int, pace: Pace | None = None) -> None:
        self.lists, self.tokens = lists, tokens
        self.pace = pace or Pace()
        self._min_tokens = min_tokens
        self._refused: dict[Hashable, float] = {}
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def admitted(
        self,
        client: Hashable,
        lists: int,
        tokens: int,
        *,
        remaining_s: float = math.inf,
        wait: bool = False,
    ) -> AsyncIterator[Ticket]:
        """Holds room for a call.

        Args:
            tokens: words to score, as well as is known.
            remaining_s: until the caller's deadline.
            wait: for room, instead of being refused.

        Raises:
            Overloaded: there is no room, or no answer would come before the deadline.
        """
        ticket = Ticket(client, lists, tokens)
        async with self._changed:
            if wait:
                await self._changed.wait_for(lambda: self._fits(ticket))
            elif refusal := self._refusal(ticket, remaining_s):
                self._note(client)
                raise Overloaded(f"{refusal}; try later", retry_after_s=self.retry_after_s())
            self.pace.busy()
            self.lists.add(client, lists)
            self.tokens.add(client, ticket.tokens)
        try:
            yield ticket
        finally:
            self.lists.add(client, -ticket.lists)
            self.tokens.add(client, -ticket.tokens)
            if not self.lists.held and not self.tokens.held:
                self.pace.idle()
            async with self._changed:
                self._changed.notify_all()

    def correct(self, ticket: Ticket, tokens: int) -> None:
        """Says how many tokens a call really has."""
        self.tokens.add(ticket.client, tokens - ticket.tokens)
        ticket.tokens = tokens

    def predicted_wait_s(self) -> float:
        """Until what comes now would be begun."""
        return self.pace.seconds_for(self.tokens.held)

    def retry_after_s(self) -> float:
        """When a refused caller might find room, a little different for each."""
        low, high = RETRY_S
        return min(max(self.predicted_wait_s(), low), high) * random.uniform(0.8, 1.2)

    def _refusal(self, ticket: Ticket, remaining_s: float) -> str:
        shared = self._others(ticket.client)
        for room, amount in ((self.lists, ticket.lists), (self.tokens, ticket.tokens)):
            if refusal := room.refusal(ticket.client, amount, shared=shared):
                return refusal
        wait_s = self.pace.seconds_for(self.tokens.held + ticket.tokens)
        if self.tokens.held >= self._min_tokens and wait_s > SURE_SHARE * remaining_s:
            return f"an answer would take some {wait_s:.2f} s, the deadline is in {remaining_s:.2f} s"
        return ""

    def _fits(self, ticket: Ticket) -> bool:
        """Whether there is room for who waits for it; as long as there is none, others leave some."""
        if not self._refusal(ticket, math.inf):
            return True
        self._note(ticket.client)
        return False

    def _note(self, client: Hashable) -> None:
        """There is a client that had no room."""
        self._refused.pop(client, None)
        self._refused[client] = time.monotonic()  # the last one, so that the oldest are first

    def _others(self, client: Hashable) -> bool:
        """Whether any other client has something in flight, or was refused of late."""
        now = time.monotonic()
        while self._refused and now - self._refused[oldest := next(iter(self._refused))] > RECENT_S:
            del self._refused[oldest]
        return self.lists.has_others(client) or bool(self._refused.keys() - {client})
