"""Decide which calls are admitted, by what is in flight, whose it is, and whether a deadline can be met.

How long a call would take follows from its client's turn in the fair queue: other clients may have more work
in flight than that, which is scored later.

Calls are counted here rather than by gRPC, whose own limit would also refuse health checks.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from rescorer.errors import Overloaded
from rescorer.service.engine.fair_queue import NO_WORK, Work
from rescorer.service.engine.quota import Quota, has_other_keys

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


class CostBefore(Protocol):
    """Predicts the cost of everything that is scored before the last of some new items of a client.

    ``expected`` is work that clients will add before them.
    """

    def __call__(self, client: Hashable, work: Work, expected: Mapping[Hashable, Work], /) -> float: ...


class Ticket:
    """What an admitted call holds."""

    def __init__(self, client: Hashable, lists: int, tokens: int) -> None:
        self.client, self.lists, self.tokens = client, lists, tokens
        self.is_expected = False
        """Whether the call's work is not in the queue yet."""

    @property
    def work(self) -> Work:
        return Work(self.tokens, self.lists)


class Admission:
    """Admit or refuse calls.

    Args:
        lists: quota of lists in flight.
        tokens: quota of tokens in flight.
        min_tokens: number of tokens before a call below which it is not refused because of its deadline.
        cost_before: predicts the number of tokens before a call from the queue.
        throughput: estimate of the tokens scored per second.
    """

    def __init__(
        self,
        lists: Quota,
        tokens: Quota,
        min_tokens: int,
        cost_before: CostBefore,
        throughput: Throughput | None = None,
    ) -> None:
        self.lists, self.tokens = lists, tokens
        self.throughput = throughput or Throughput()
        self._min_tokens = min_tokens
        self._cost_before = cost_before
        self._expected: dict[Hashable, Work] = {}
        """Work of admitted calls that are being prepared, by client."""
        self._refused_at: dict[Hashable, float] = {}  # by client, oldest first
        self._waiting: list[asyncio.Future[None]] = []  # calls that wait for capacity, longest wait first
        self._reserving: Ticket | None = None
        """A waiting call for which capacity is kept free, since small calls would take what is released."""

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
        if wait:
            await self._wait_for_capacity(ticket)
        elif reason := self._reason_to_refuse(ticket, remaining_s):
            self._remember_refused(client)
            raise Overloaded(f"{reason}; try again later", retry_after_s=self.retry_after_s(client))
        self.throughput.mark_busy()
        self.lists.add(client, lists)
        self.tokens.add(client, tokens)
        self._expect(ticket)
        try:
            yield ticket
        finally:
            self._stop_expecting(ticket)
            self.lists.add(client, -ticket.lists)
            self.tokens.add(client, -ticket.tokens)
            if not self.lists.held and not self.tokens.held:
                self.throughput.mark_idle()
            self._wake_waiting()

    def begin_scoring(self, ticket: Ticket, tokens: int) -> None:
        """Record that the work of a call is put into the queue now.

        Args:
            tokens: the counted number of tokens, which replaces the estimate.
        """
        self._stop_expecting(ticket)
        self.tokens.add(ticket.client, tokens - ticket.tokens)
        ticket.tokens = tokens

    def retry_after_s(self, client: Hashable) -> float:
        """Seconds until a refused client may find capacity, when its present work will have been scored;
        randomised so that callers do not all return together."""
        wait_s = self.throughput.seconds_for(self._cost_before(client, NO_WORK, self._expected))
        low, high = RETRY_BOUNDS_S
        return min(max(wait_s, low), high) * random.uniform(0.8, 1.2)

    def _reason_to_refuse(self, ticket: Ticket, remaining_s: float) -> str:
        client, first = ticket.client, self._reserving
        shared = self._has_other_clients(client)
        reserved = NO_WORK if first is None or first is ticket else first.work
        for quota, amount, reserved_amount in (
            (self.lists, ticket.lists, reserved.items),
            (self.tokens, ticket.tokens, reserved.cost),
        ):
            if reason := quota.reason_to_refuse(client, amount, shared=shared, reserved=reserved_amount):
                return reason
        if remaining_s == math.inf:
            return ""
        tokens_before = self._cost_before(ticket.client, ticket.work, self._expected)
        wait_s = self.throughput.seconds_for(tokens_before + ticket.tokens)
        if tokens_before >= self._min_tokens and wait_s > USABLE_DEADLINE_SHARE * remaining_s:
            return f"an answer would take about {wait_s:.2f} s, but the deadline is in {remaining_s:.2f} s"
        return ""

    async def _wait_for_capacity(self, ticket: Ticket) -> None:
        """Wait until a call fits; meanwhile other clients have to leave some capacity for it.

        Capacity is reserved for the first call whose client has nothing in flight, at most half of it.
        """
        try:
            while self._reason_to_refuse(ticket, math.inf):
                self._remember_refused(ticket.client)
                if self.lists.has(ticket.client) or self.tokens.has(ticket.client):
                    self._stop_reserving(ticket)
                elif self._reserving is None:
                    self._reserving = ticket
                released = asyncio.get_running_loop().create_future()
                self._waiting.append(released)
                await released
        finally:
            if self._stop_reserving(ticket):
                self._wake_waiting()

    def _stop_reserving(self, ticket: Ticket) -> bool:
        """Stop keeping capacity free for a call; return whether it was kept for this one."""
        is_reserving = self._reserving is ticket
        if is_reserving:
            self._reserving = None
        return is_reserving

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for released in waiting:
            if not released.done():
                released.set_result(None)

    def _expect(self, ticket: Ticket) -> None:
        ticket.is_expected = True
        self._expected[ticket.client] = self._expected.get(ticket.client, NO_WORK).plus(*ticket.work)

    def _stop_expecting(self, ticket: Ticket) -> None:
        if ticket.is_expected:
            ticket.is_expected = False
            expected = self._expected.pop(ticket.client).plus(-ticket.tokens, -ticket.lists)
            if expected != NO_WORK:
                self._expected[ticket.client] = expected

    def _remember_refused(self, client: Hashable) -> None:
        self._refused_at.pop(client, None)  # reinsert at the end, so that the oldest come first
        self._refused_at[client] = time.monotonic()

    def _has_other_clients(self, client: Hashable) -> bool:
        """Whether another client has lists in flight or was refused recently."""
        now = time.monotonic()
        refused_at = self._refused_at
        while refused_at and now - refused_at[oldest := next(iter(refused_at))] > REFUSED_MEMORY_S:
            del refused_at[oldest]
        return self.lists.has_others(client) or has_other_keys(refused_at, client)
