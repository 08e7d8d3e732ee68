"""Decide which calls are admitted, by what is in flight, whose it is, and whether deadlines can be met.

How long a call would take follows from its client's turn in the fair queue: other clients may have more work
in flight that is scored later. Calls are counted here rather than by gRPC, whose own limit would also refuse
health checks.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from statistics import median, median_low
from typing import NamedTuple

from rescorer.errors import Overloaded, Unavailable
from rescorer.service.engine.fair_queue import NO_WORK, Work

SETTINGS = {
    "lists": ("max_in_flight_lists", "max_client_lists"),
    "tokens": ("max_in_flight_tokens", "max_in_flight_tokens"),
    "bytes": ("max_in_flight_bytes", "max_client_bytes"),
}
"""Names of the settings that bound each quantity, over all clients and per client, for error messages."""


class Quota:
    """A bounded quantity that clients share.

    While several clients are active, none may hold more than the amount that is still free (dynamic
    thresholds, Choudhury and Hahne 1998). If n clients take as much as they can, each holds 1/(n+1) of the
    capacity, and the same amount stays free for another client.

    Args:
        name: name of the quantity, a key of ``SETTINGS``.
        capacity: bound over all clients. A single amount above it is admitted if nothing else is held.
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
        """Largest amount that is kept free for a client that waits: half of the capacity.

        Otherwise large requests that follow one another would leave too little to all other clients.
        """
        return self.capacity // 2

    def has(self, client: Hashable) -> bool:
        """Whether a client holds anything of this quantity."""
        return client in self._held_by

    def has_others(self, client: Hashable) -> bool:
        """Whether a client other than this one holds anything of this quantity."""
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


REFUSED_MEMORY_S = 10.0
"""Time after a refusal for which other clients have to leave capacity for the refused client."""
USABLE_DEADLINE_SHARE = 2 / 3
"""Largest predicted scoring time, as a share of the time to the deadline. Predictions are uncertain, and a
call that misses its deadline has delayed others for nothing. Under overload, every admitted call takes about
as long as this limit permits."""
RETRY_BOUNDS_S = (0.05, 5.0)
"""Least and greatest time after which a refused caller should try again."""


STARVED_REFUSALS = 10
"""A client that is refused this many times in a row, each time while a worker is idle and the client has
nothing in flight, is starved."""
RECENT_BATCHES = 31
"""Number of batches of a client from which its pace follows."""
LEAST_TOKENS = 256
"""Batches with fewer tokens take as long as one with this many; see ``Pace``."""
MAX_PACES = 1024
"""Number of clients whose paces are remembered."""


class Pace:
    """Seconds per token of each client's batches, in the unit in which the queue counts costs.

    A client's pace is the median of its recent batches, in which large ones count more: under load, batches
    are large and more efficient, while the time of a list of a few words hardly depends on the pace. What one
    client sends affects the predictions for others only as far as it is scored before their lists. Clients
    that are not known yet get the median of the known ones.
    """

    def __init__(self) -> None:
        self._recent: dict[Hashable, deque[tuple[float, int]]] = {}  # (pace, tokens); latest client last
        self._paces: dict[Hashable, float] = {}
        self._typical: float | None = 0.0  # None: to be computed again

    def record(self, tokens: Mapping[Hashable, int], seconds: float) -> None:
        """Record a scored batch.

        Args:
            tokens: the batch's tokens by client.
            seconds: how long it kept the workers busy: the time of one of them, divided by their number.
        """
        pace = seconds / max(LEAST_TOKENS, sum(tokens.values()))
        for client, count in tokens.items():
            recent = self._recent.pop(client, None) or deque(maxlen=RECENT_BATCHES)
            self._recent[client] = recent
            recent.append((pace, count))
            self._paces[client] = weighted_median(recent)
        while len(self._recent) > MAX_PACES:
            del self._recent[oldest := next(iter(self._recent))]
            del self._paces[oldest]
        self._typical = None

    def seconds_for(self, costs: Mapping[Hashable, float]) -> float:
        """Predict how long some tokens will take, by their clients; 0 before anything is recorded."""
        if self._typical is None:
            self._typical = median(self._paces.values())
        return sum(cost * self._paces.get(client, self._typical) for client, cost in costs.items())


def weighted_median(values: Iterable[tuple[float, int]]) -> float:
    """Return the smallest of some weighted values up to which there is half of the weight.

    >>> weighted_median([(3.0, 1), (1.0, 1), (2.0, 5)])
    2.0
    """
    ordered, weights = zip(*sorted(values), strict=True)
    half = sum(weights) / 2
    return next(value for value, total in zip(ordered, accumulate(weights), strict=True) if total >= half)


SLOWDOWN_MEMORY_S = 10.0
"""Time for which the latest batch of a worker tells how busy the machine is."""


class Slowdown:
    """How much longer batches take at present than the paces of their clients say.

    Paces follow from batches that have ended. When the machine suddenly gets busy, for instance because
    clients share its cores, no batch may end for a long time, and under overload none in time: then what is
    running, or was abandoned, is the only evidence.

    Args:
        least_tokens: smaller batches are expected to take as long as one with this many tokens.
        n_workers: number of workers; if there are several, the median of their slowdowns counts.
    """

    def __init__(self, pace: Pace, least_tokens: int, n_workers: int) -> None:
        self._pace, self.least_tokens, self._n_workers = pace, least_tokens, max(1, n_workers)
        self._running: dict[object, tuple[float, float]] = {}  # by worker: since when; expected seconds
        self._latest: dict[object, tuple[float, float]] = {}  # by worker: when it ended; its slowdown

    @contextmanager
    def watch(self, worker: object, tokens: Mapping[Hashable, int]) -> Iterator[None]:
        """Observe a batch, with these tokens by client, while a worker scores it in the ``with`` block."""
        seconds = self._n_workers * self._pace.seconds_for(tokens)
        expected_s = seconds * max(1.0, self.least_tokens / max(1, sum(tokens.values())))
        if not expected_s:  # nothing is known yet
            yield
            return
        self._running[worker] = time.monotonic(), expected_s
        try:
            yield
        except BaseException:  # abandoned: it would have taken longer
            self._end(worker, self._of(worker))
            raise
        self._end(worker, 0.0)

    def _end(self, worker: object, least: float) -> None:
        now = time.monotonic()
        began, expected_s = self._running.pop(worker)
        self._latest[worker] = now, max(least, (now - began) / expected_s)

    def _of(self, worker: object) -> float:
        """Return the slowdown of one worker, at least 1."""
        now = time.monotonic()
        began, expected_s = self._running.get(worker, (now, 1.0))
        ended, latest = self._latest.get(worker, (-math.inf, 1.0))
        is_recent = now - ended < SLOWDOWN_MEMORY_S
        return max(1.0, (now - began) / expected_s, latest if is_recent else 1.0)

    @property
    def factor(self) -> float:
        """The factor by which to multiply predictions, at least 1."""
        known = [self._of(worker) for worker in self._running.keys() | self._latest.keys()]
        return median_low([*known, *[1.0] * (self._n_workers - len(known))])


INFLOW_S = 5.0
"""Time constant, in seconds, of the average of the work that clients bring."""
NEGLIGIBLE_TOKENS = 1.0
"""A client is forgotten once its share in the average has shrunk to fewer tokens."""
OTHERS = ("others",)
"""Stands for the clients who bring little in a prediction."""
HEAVIEST = 64
"""Number of clients whose work is predicted for each of them; that of all others is one sum."""
AVERAGE_S = 0.05
"""Time for which averages are used before they are computed again. With a thousand clients that takes a
millisecond."""


class Brought(NamedTuple):
    """Work that clients bring."""

    by_client: Mapping[Hashable, Work]
    """Work of each of the clients who bring most."""
    others: Work
    """Work of all others together."""

    def times(self, factor: float) -> Brought:
        return Brought(
            {client: work.times(factor) for client, work in self.by_client.items()}, self.others.times(factor)
        )


class Inflow:
    """The work that admitted calls of each client bring, as an exponential average over ``INFLOW_S``.

    A fair queue serves some of the work that arrives later before work that waits already: that of clients
    who are not as far ahead. What will arrive is predicted by what arrived. Refused calls do not count, so a
    client cannot make the others' predictions worse than by what it has scored.
    """

    def __init__(self) -> None:
        self._sums: dict[Hashable, tuple[float, Work]] = {}  # by client: time and sum; latest client last
        self._average, self._averaged_at = Brought({}, NO_WORK), -math.inf
        self._light: Mapping[Hashable, Work] = {}
        """The parts of ``others`` in the average, by client."""

    def record(self, client: Hashable, work: Work) -> None:
        """Record the work of an admitted call."""
        now = time.monotonic()
        at, total = self._sums.pop(client, (now, NO_WORK))
        self._sums[client] = now, total.times(math.exp((at - now) / INFLOW_S)).plus(*work)
        while len(self._sums) > MAX_PACES:
            del self._sums[next(iter(self._sums))]

    def within(self, seconds: float, client: Hashable) -> Brought:
        """Predict the work that clients other than this one will bring within some seconds."""
        now = time.monotonic()
        if now - self._averaged_at > AVERAGE_S:
            self._compute(now)
        by_client, others = self._average
        if client in by_client:
            by_client = {other: work for other, work in by_client.items() if other != client}
        elif client in self._light:
            cost, items = self._light[client]
            others = Work(max(0.0, others.cost - cost), max(0.0, others.items - items))
        return Brought(by_client, others).times(max(0.0, seconds) / INFLOW_S)

    def _compute(self, now: float) -> None:
        """Compute the averages at a time, and forget clients with almost none."""
        sums = {
            client: total.times(math.exp((at - now) / INFLOW_S)) for client, (at, total) in self._sums.items()
        }
        for client in [client for client, total in sums.items() if total.cost < NEGLIGIBLE_TOKENS]:
            del self._sums[client], sums[client]
        heaviest = nlargest(HEAVIEST, sums, key=lambda client: sums[client].cost)
        by_client = {client: sums.pop(client) for client in heaviest}
        others = Work(*map(sum, zip(*sums.values(), strict=True))) if sums else NO_WORK
        self._average, self._averaged_at, self._light = Brought(by_client, others), now, sums


CostsBefore = Callable[[Hashable, Work, Mapping[Hashable, Work]], Mapping[Hashable, float]]
"""Predicts the cost, by client, of everything that is scored before the last of some new items of a client.
The last argument is work that clients will add before these items are scored."""


class Refusals(NamedTuple):
    """The latest refusals of a client."""

    at: float
    """Time of the last one, in ``time.monotonic`` seconds."""
    while_idle: int
    """How many in a row there were while a worker was idle."""


class NotReady(Unavailable):
    """All workers are lost, and none will have loaded the models again before the deadline of a call."""


@dataclass(eq=False, slots=True)
class Ticket:
    """The capacity that an admitted call holds."""

    client: Hashable
    lists: int
    tokens: int
    items: int
    """Number of parts in which the lists will be scored, as far as it is known."""
    is_expected: bool = False
    """True until the work of the call is put into the queue."""

    @property
    def work(self) -> Work:
        return Work(self.tokens, self.items)


class Admission:
    """Admit or refuse calls.

    Args:
        lists: quota of lists in flight.
        tokens: quota of tokens in flight.
        min_tokens: if fewer tokens than this precede a call, its deadline is no reason to refuse it.
        costs_before: predicts, from the queue, the tokens that are scored before a call.
        pace: predicts how long tokens take.
        slowdown: returns a factor by which these predictions are too short at present.
        max_item_tokens: longer lists are scored in parts of at most this many tokens.
        is_idle: whether a worker has nothing to do.
        ready_in_s: estimates the seconds until a worker can score; 0 if one can.
        on_starved: called with a client that is refused again and again although workers are idle.
    """

    def __init__(
        self,
        lists: Quota,
        tokens: Quota,
        min_tokens: int,
        costs_before: CostsBefore,
        pace: Pace,
        *,
        slowdown: Callable[[], float] = lambda: 1.0,
        max_item_tokens: float = math.inf,
        is_idle: Callable[[], bool] = lambda: False,
        ready_in_s: Callable[[], float] = lambda: 0.0,
        on_starved: Callable[[Hashable], None] = lambda client: None,
    ) -> None:
        self.lists, self.tokens = lists, tokens
        self._min_tokens, self._costs_before, self._pace = min_tokens, costs_before, pace
        self._max_item_tokens, self._is_idle, self._on_starved = max_item_tokens, is_idle, on_starved
        self._ready_in_s, self._slowdown = ready_in_s, slowdown
        self._inflow = Inflow()
        self._expected: dict[Hashable, Work] = {}
        """Work of admitted calls that are being prepared, by client."""
        self._refusals: dict[Hashable, Refusals] = {}  # by client, oldest first
        self._waiting: list[asyncio.Future[None]] = []  # calls that wait for capacity, longest wait first
        self._reserving: Ticket | None = None
        """The waiting call for which capacity is kept free. Otherwise small calls would take it all."""

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
            Overloaded: there is no capacity, or the deadline would probably be missed.
            NotReady: no worker can score before the deadline.
        """
        if (ready_in_s := self._ready_in_s()) > max(0.0, remaining_s):
            raise NotReady(
                "no worker has the models: they are being loaded again, which will probably take another "
                f"{ready_in_s:.1f} s, but the deadline is in {remaining_s:.2f} s; try again later"
            )
        ticket = Ticket(client, lists, tokens, max(lists, math.ceil(tokens / self._max_item_tokens)))
        if wait:
            await self._wait_for_capacity(ticket)
        elif reason := self._reason_to_refuse(ticket, remaining_s):
            raise self._refusal(client, reason)
        if (refusals := self._refusals.get(client)) is not None:
            self._refusals[client] = refusals._replace(while_idle=0)
        self.lists.add(client, lists)
        self.tokens.add(client, tokens)
        ticket.is_expected = True
        self._inflow.record(client, ticket.work)
        self._expected[client] = self._expected.get(client, NO_WORK).plus(*ticket.work)
        try:
            yield ticket
        finally:
            self._stop_expecting(ticket)
            self.lists.add(client, -ticket.lists)
            self.tokens.add(client, -ticket.tokens)
            self._wake_waiting()

    def check_room(self, client: Hashable, lists: int) -> None:
        """Refuse a call whose lists ``admit`` would refuse whatever they cost, before that is computed.

        Raises:
            Overloaded: there is no capacity for so many lists.
        """
        reserved = 0 if self._reserving is None else self._reserving.lists
        shared = self._has_other_clients(client)
        if reason := self.lists.reason_to_refuse(client, lists, shared=shared, reserved=reserved):
            raise self._refusal(client, reason)

    def begin_scoring(self, ticket: Ticket, tokens: int) -> None:
        """Record that the work of a call is put into the queue now.

        Args:
            tokens: the counted number of tokens, which replaces the estimate.
        """
        self._stop_expecting(ticket)
        self.tokens.add(ticket.client, tokens - ticket.tokens)
        ticket.tokens = tokens

    def retry_after_s(self, client: Hashable) -> float:
        """Return how long a refused client should wait before retrying, with jitter.

        By then the work that the client has in flight should be scored.
        """
        wait_s = self._predict(client, NO_WORK)[1]
        low, high = RETRY_BOUNDS_S
        return min(max(wait_s, low), high) * random.uniform(0.8, 1.2)

    def _refusal(self, client: Hashable, reason: str) -> Overloaded:
        self._remember_refused(client)
        return Overloaded(f"{reason}; try again later", retry_after_s=self.retry_after_s(client))

    def _reason_to_refuse(self, ticket: Ticket, remaining_s: float) -> str:
        client, first = ticket.client, self._reserving
        shared = self._has_other_clients(client)
        reserved = None if first is ticket else first
        for quota, amount, reserved_amount in (
            (self.lists, ticket.lists, 0 if reserved is None else reserved.lists),
            (self.tokens, ticket.tokens, 0 if reserved is None else reserved.tokens),
        ):
            if reason := quota.reason_to_refuse(client, amount, shared=shared, reserved=reserved_amount):
                return reason
        if remaining_s == math.inf:
            return ""
        usable_s = USABLE_DEADLINE_SHARE * remaining_s
        tokens_before, wait_s = self._predict(client, ticket.work, usable_s)
        if tokens_before >= self._min_tokens and wait_s > usable_s:
            return f"an answer would take about {wait_s:.2f} s, but the deadline is in {remaining_s:.2f} s"
        return ""

    def _predict(self, client: Hashable, work: Work, seconds: float = 0.0) -> tuple[float, float]:
        """Predict the tokens that are scored before new items, and the time until the last one is scored.

        No more tokens are predicted than the server holds, and will be brought.

        Args:
            seconds: time for which others bring more work. If the prediction exceeds it, so does the actual
                time, which is then at least as long as predicted.
        """
        brought, others = self._inflow.within(seconds, client)
        expected = {
            other: self._expected.get(other, NO_WORK).plus(*brought.get(other, NO_WORK))
            for other in self._expected.keys() | brought.keys()
        }
        costs = dict(self._costs_before(client, work, expected))
        last = work.cost / work.items if work.items else work.cost
        first = min(costs.get(client, 0.0), work.cost - last)  # the new items before it
        if others.cost:
            costs[OTHERS] = others.cost
        held = self.tokens.held + first + others.cost + sum(more.cost for more in brought.values())
        before = sum(costs.values())
        if before > held:
            costs = {other: cost * held / before for other, cost in costs.items()}
        costs[client] = costs.get(client, 0.0) + last
        return min(before, held) - first, self._pace.seconds_for(costs) * self._slowdown()

    async def _wait_for_capacity(self, ticket: Ticket) -> None:
        """Wait until there is capacity for a call; meanwhile other clients have to leave some of it.

        For the first waiting call whose client has nothing in flight, up to half of the capacity is reserved.
        """
        try:
            while self._reason_to_refuse(ticket, math.inf):
                self._remember_refused(ticket.client)
                if self.lists.has(ticket.client) or self.tokens.has(ticket.client):
                    if self._reserving is ticket:
                        self._reserving = None
                elif self._reserving is None:
                    self._reserving = ticket
                released = asyncio.get_running_loop().create_future()
                self._waiting.append(released)
                await released
        finally:
            if self._reserving is ticket:
                self._reserving = None
                self._wake_waiting()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for released in waiting:
            if not released.done():
                released.set_result(None)

    def _stop_expecting(self, ticket: Ticket) -> None:
        if ticket.is_expected:
            ticket.is_expected = False
            # Nothing is expected of a client whose calls are all empty.
            expected = self._expected.pop(ticket.client, NO_WORK).plus(-ticket.tokens, -ticket.items)
            if expected != NO_WORK:
                self._expected[ticket.client] = expected

    def _remember_refused(self, client: Hashable) -> None:
        former = self._refusals.pop(client, None)  # reinsert at the end, so that the oldest come first
        is_left_out = self._is_idle() and not self.lists.has(client)
        count = (former.while_idle if former else 0) + 1 if is_left_out else 0
        self._refusals[client] = Refusals(time.monotonic(), count)
        if count and count % STARVED_REFUSALS == 0:
            self._on_starved(client)

    def _has_other_clients(self, client: Hashable) -> bool:
        """Whether another client has lists in flight or was refused recently."""
        now = time.monotonic()
        refusals = self._refusals
        while refusals and now - refusals[oldest := next(iter(refusals))].at > REFUSED_MEMORY_S:
            del refusals[oldest]
        return self.lists.has_others(client) or has_other_keys(refusals, client)


DECAY = 0.9
"""Factor by which the weight of earlier responses shrinks with each new one."""
MIN_TOKENS = 1024
"""Smallest response that is recorded. Smaller ones take a few milliseconds whatever their size is, so that
their time does not predict that of large ones."""
SAFETY_FACTOR = 1.5
"""The prediction is the mean times this factor, because a late answer is worth nothing."""


class ResponseTime:
    """Moving average of the time per token that deciding and writing a response takes, including waiting.

    A call with a fallback stops scoring this long before its deadline, so that its answer, however degraded,
    is sent in time.
    """

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def record(self, tokens: int, seconds: float) -> None:
        """Record a response that costs as much to decide and write as ``tokens`` tokens."""
        if tokens < MIN_TOKENS:
            return
        self._tokens = DECAY * self._tokens + tokens
        self._seconds = DECAY * self._seconds + seconds

    def seconds_for(self, tokens: int) -> float:
        """Predict how long a response takes, generously; 0 before anything is recorded."""
        return SAFETY_FACTOR * tokens * self._seconds / self._tokens if self._tokens else 0.0
