"""Decide which calls are admitted, and in which order lists are scored: quotas, fair queues, deadlines.

Queues use start-time fair queueing (Goyal, Vin and Cheng 1996): each client has a tag, the virtual time at
which its share of the service reaches its next item, and the client with the smallest tag is served first. A
client that sends much work delays only itself, and what precedes a new item follows from the tags. Urgent
items, which fallbacks need shortly before a deadline, are served first, but get at most half of the service:
otherwise a client that sends more than the server can do and permits a fallback would keep all others from
being served.

Calls are admitted by what is in flight, whose it is, and whether a deadline can be met. How long a call would
take follows from its client's turn in the fair queue: other clients may have more work in flight than that,
which is scored later. Calls are counted here rather than by gRPC, whose own limit would also refuse health
checks.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from rescorer.errors import Overloaded

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


Item = TypeVar("Item")

MAX_REMEMBERED_CLIENTS = 1024
"""Number of remembered clients above which those without influence on future tags are forgotten."""


class Work(NamedTuple):
    """The cost of some items, and their number."""

    cost: int = 0
    items: int = 0

    def plus(self, cost: int, items: int) -> Work:
        return Work(self.cost + cost, self.items + items)

    def due_within(self, span: float) -> float:
        """Return the cost of the items that are due within a span of virtual time, its end included.

        The first item is due at the beginning, and each of the others when the previous one is paid. They are
        assumed to cost the same. A cost without items, such as that of a large request without lists, is due
        never.
        """
        if span < 0 or not self.cost or not self.items:
            return 0.0
        cost_per_item = self.cost / self.items
        return min(self.cost, (span // cost_per_item + 1) * cost_per_item)


NO_WORK = Work()


class Flow(Generic[Item]):
    """The waiting items of one client, by kind and in the order of their arrival."""

    def __init__(self, client: Hashable) -> None:
        self.client = client
        self.tag = 0
        """Virtual time at which the next item is due."""
        self.waiting = NO_WORK
        self.entries: dict[Hashable, deque[Entry[Item]]] = {}


class Entry(Generic[Item]):
    """The place of an item in the queue."""

    __slots__ = ("cost", "flow", "item", "kind", "number")

    def __init__(self, number: int, item: Item, cost: int, kind: Hashable, flow: Flow[Item]) -> None:
        self.number, self.item, self.cost, self.kind = number, item, cost, kind
        self.flow: Flow[Item] | None = flow
        """None: the item no longer waits."""


class FairQueue(Generic[Item]):
    """A queue of items of several clients and kinds.

    Args:
        is_finished: whether an item no longer needs to be served; such an item is skipped.
    """

    def __init__(self, is_finished: Callable[[Item], bool] = lambda item: False) -> None:
        self._is_finished = is_finished
        self._virtual_time = 0
        self._flows: dict[Hashable, Flow[Item]] = {}  # by client
        self._busy: dict[Hashable, Flow[Item]] = {}  # by client: those with waiting items
        self._heaps: dict[Hashable, list[tuple[int, int, Flow[Item]]]] = {}
        """By kind: the flows that have had such items since they were last looked at, with their tags and the
        numbers of their first items, both of which may have grown since."""
        self._numbers = itertools.count()
        self._n_waiting = 0
        self.waiting_cost = self.taken_cost = 0
        """Cost of the waiting items, and of all that have ever been taken."""

    def __len__(self) -> int:
        """Number of items, including finished ones that have not been skipped yet."""
        return self._n_waiting

    def put(self, item: Item, cost: int, *, client: Hashable = "", kind: Hashable = "") -> Callable[[], None]:
        """Add an item; return a function that removes it, if it still waits, at no cost to its client.

        Args:
            cost: cost of serving the item, above 0.
            kind: only items of the same kind are taken together.
        """
        flow = self._flow_of(client)
        if not flow.waiting.items:
            flow.tag = max(flow.tag, self._virtual_time)
            self._busy[client] = flow
        entry = Entry(next(self._numbers), item, cost, kind, flow)
        if kind not in flow.entries:
            flow.entries[kind] = deque()
            heapq.heappush(self._heaps.setdefault(kind, []), (flow.tag, entry.number, flow))
        flow.entries[kind].append(entry)
        flow.waiting = flow.waiting.plus(cost, 1)
        self._n_waiting += 1
        self.waiting_cost += cost
        return partial(self._remove, entry)

    def take(self, budget: int) -> list[Item]:
        """Remove and return the next items, all of one kind, that cost at most ``budget`` together.

        The first item is returned even if it alone costs more. The result is empty if nothing is waiting.
        """
        return self._take(self.next_kind(), budget, at_least=1)

    def take_more(self, kind: Hashable, budget: int) -> list[Item]:
        """Remove and return the next items if they are of this kind and cost at most ``budget`` together."""
        return self._take(kind, budget, at_least=0) if kind == self.next_kind() else []

    def next_kind(self) -> Hashable:
        """Return the kind of the next item; None if nothing is waiting."""
        firsts = {kind: flow for kind in list(self._heaps) if (flow := self._first_flow(kind))}
        return min(
            firsts, key=lambda kind: (firsts[kind].tag, firsts[kind].entries[kind][0].number), default=None
        )

    def cost_before(
        self, client: Hashable, work: Work, expected: Mapping[Hashable, Work] | None = None
    ) -> float:
        """Predict the cost of everything that will be served before the last of some new items.

        Of another client, that is what is due by its tag until the last new item is due. If all items of a
        client cost the same and nothing else arrives, the prediction is exact; otherwise it is off by less
        than an item per client.

        Args:
            work: the new items. All but the last are included in the result.
            expected: work that clients will add before the new items.
        """
        expected = expected or {}
        own = self._work_of(client, expected)
        first_items_cost = work.cost * (work.items - 1) / work.items if work.items else 0.0
        before = own.cost + first_items_cost
        due = self._tag_of(client) + before
        for other in (self._busy.keys() | expected.keys()) - {client}:
            before += self._work_of(other, expected).due_within(due - self._tag_of(other))
        return before

    def _work_of(self, client: Hashable, expected: Mapping[Hashable, Work]) -> Work:
        flow = self._busy.get(client)
        return (flow.waiting if flow else NO_WORK).plus(*expected.get(client, NO_WORK))

    def _tag_of(self, client: Hashable) -> int:
        """Virtual time at which the next item of a client is due."""
        flow = self._flows.get(client)
        if flow is None:
            return self._virtual_time
        return flow.tag if flow.waiting.items else max(flow.tag, self._virtual_time)

    def _flow_of(self, client: Hashable) -> Flow[Item]:
        if client not in self._flows:
            if len(self._flows) >= MAX_REMEMBERED_CLIENTS:
                self._flows = {
                    name: flow
                    for name, flow in self._flows.items()
                    if flow.waiting.items or flow.tag > self._virtual_time
                }
            self._flows[client] = Flow(client)
        return self._flows[client]

    def _take(self, kind: Hashable, budget: int, at_least: int) -> list[Item]:
        items: list[Item] = []
        while (flow := self._first_flow(kind)) is not None:
            entry = flow.entries[kind][0]
            if len(items) >= at_least and entry.cost > budget:
                break
            items.append(entry.item)
            self._pop(flow, kind)
            self._virtual_time = max(self._virtual_time, flow.tag)
            flow.tag += entry.cost
            budget -= entry.cost
            self.taken_cost += entry.cost
        self._start_over_if_empty()
        return items

    def _first_flow(self, kind: Hashable) -> Flow[Item] | None:
        """Return the flow with the smallest tag among those with unfinished items of a kind."""
        heap = self._heaps.get(kind, [])
        while heap:
            tag, number, flow = heap[0]
            entries = flow.entries[kind]
            while entries and self._is_finished(entries[0].item):
                self._pop(flow, kind)
            if not entries:
                del flow.entries[kind]
                heapq.heappop(heap)
            elif (tag, number) != (flow.tag, entries[0].number):
                heapq.heapreplace(heap, (flow.tag, entries[0].number, flow))
            else:
                return flow
        self._heaps.pop(kind, None)
        return None

    def _remove(self, entry: Entry[Item]) -> None:
        if entry.flow is not None:
            entry.flow.entries[entry.kind].remove(entry)
            self._leave(entry, entry.flow)
            self._start_over_if_empty()

    def _start_over_if_empty(self) -> None:
        """Forget what clients have used once no client waits."""
        if not self._n_waiting:
            self._flows.clear()
            self._heaps.clear()
            self._virtual_time = 0

    def _pop(self, flow: Flow[Item], kind: Hashable) -> None:
        self._leave(flow.entries[kind].popleft(), flow)

    def _leave(self, entry: Entry[Item], flow: Flow[Item]) -> None:
        """Stop counting an item as waiting."""
        entry.flow = None
        del entry.item  # which has the function that removes it: no cycle may keep a request in memory
        self._n_waiting -= 1
        self.waiting_cost -= entry.cost
        flow.waiting = flow.waiting.plus(-entry.cost, -1)
        if not flow.waiting.items:
            del self._busy[flow.client]


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


DECAY = 0.9
"""Factor by which the weight of earlier responses shrinks with each new one."""
MIN_TOKENS = 1024
"""Smallest response that is recorded. What smaller ones take, a few milliseconds, hardly depends on their
size, so that it does not predict the time of large ones."""
SAFETY_FACTOR = 1.5
"""Factor of the prediction above the mean, because a late answer is worth nothing."""


class ResponseTime:
    """Moving average of the time per token of deciding and writing responses, waiting included.

    Every call with a fallback gives up this time of its scoring, so that its answer, however degraded, is
    sent before the deadline.
    """

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def record(self, tokens: int, seconds: float) -> None:
        """Record a response whose decisions and text cost as much as ``tokens`` tokens."""
        if tokens < MIN_TOKENS:
            return
        self._tokens = DECAY * self._tokens + tokens
        self._seconds = DECAY * self._seconds + seconds

    def seconds_for(self, tokens: int) -> float:
        """Predict how long a response takes, generously; 0 before anything is recorded."""
        return SAFETY_FACTOR * tokens * self._seconds / self._tokens if self._tokens else 0.0


REFUSED_MEMORY_S = 10.0
"""Time after a refusal for which other clients leave capacity for the refused client."""
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


CostBefore = Callable[[Hashable, Work, Mapping[Hashable, Work]], float]
"""Predicts the cost of everything that is scored before the last of some new items of a client, given the
work that clients will add before them."""


@dataclass(eq=False, slots=True)
class Ticket:
    """The capacity that an admitted call holds."""

    client: Hashable
    lists: int
    tokens: int
    is_expected: bool = False
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
        self._min_tokens, self._cost_before = min_tokens, cost_before
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
            Overloaded: there is no capacity, or the deadline would probably be missed.
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
        ticket.is_expected = True
        self._expected[client] = self._expected.get(client, NO_WORK).plus(*ticket.work)
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
        """Return how long a refused client should wait before retrying: until its present work will have been
        scored. It is randomised so that callers do not all return together."""
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
