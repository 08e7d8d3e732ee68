"""Score lists for requests: queue them fairly, form batches, have the workers score them, and meet deadlines.

A list is scored as one or more work items, parts that fit into a batch. They wait in a fair queue, in which
those that fallbacks need shortly before a deadline are urgent.

There are twice as many lanes (tasks that each serve one batch at a time) as workers: while the batch of one
lane is being scored, another lane prepares the next batch, and items that arrive meanwhile join it.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from rescorer.errors import DeadlineExceeded, ModelRefused, ScoringError, Unavailable
from rescorer.frames import ScoreJob, WorkerScores
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.runtime import ContextWords
from rescorer.scoring.batch import Batch, Part, ScoredPart, ScoreRequest, split
from rescorer.scoring.components import PreparedList
from rescorer.scoring.ranker import ListRanker
from rescorer.service.engine.admission import Admission, Pace, Quota, Slowdown
from rescorer.service.engine.fair_queue import TwoLevelQueue, Work
from rescorer.service.engine.offloader import Offloader
from rescorer.service.engine.request_bounds import depth_tokens
from rescorer.service.metrics import Metrics
from rescorer.service.settings import ServiceSettings
from rescorer.service.tracing import QUEUE, PhaseTiming, timings_from_seconds
from rescorer.service.workers.peers import WorkerLost, abandoned_error
from rescorer.service.workers.pool import Worker, WorkerPool, run_within

log = structlog.get_logger()


class ScoredBatch(NamedTuple):
    """A batch that has been scored."""

    batch: Batch
    timings: Sequence[PhaseTiming]
    """Phases of the batch, starting with building its trie."""
    context_words: ContextWords
    """Number of context words that the networks read, and number that they recalled from the cache."""


class ItemScores(NamedTuple):
    """The scores of one work item."""

    part: ScoredPart
    scored: ScoredBatch
    queue: PhaseTiming
    """Time in the queue, until scoring of the batch began."""


class Kind(NamedTuple):
    """What items of one batch have in common."""

    label: str
    models: tuple[str, ...]
    is_long: bool


@dataclass(eq=False, slots=True)
class WorkItem:
    """A part of a list that waits to be scored."""

    part: Part
    label: str
    """The bundle that scores it, as ``name/version``."""
    deadline: float
    """Time after which the scores are of no use, in ``time.monotonic`` seconds."""
    models: tuple[str, ...] = ()
    """Names of the models that score the item; empty: all."""
    depth_cost: int = 0
    """Its part in what the depth of its call's lists costs; see ``depth_tokens``."""
    request_id: str = ""
    queued_at: float = field(default_factory=time.perf_counter)
    """Time of creation, in ``time.perf_counter`` seconds."""
    future: asyncio.Future[ItemScores] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Receives the scores."""
    leave_queue: Callable[[], None] = lambda: None
    """Removes the item from the queue, if it still waits there."""

    @property
    def size(self) -> int:
        """Number of tokens: words, ends of sentences and context."""
        return self.part.cost

    @property
    def cost(self) -> int:
        """Cost of scoring the item, in tokens of ordinary lists."""
        return self.part.cost + self.depth_cost

    @property
    def outcome(self) -> str:
        """The outcome so far, one of ``metrics.OUTCOMES``."""
        if not self.future.done():
            return "expired" if time.monotonic() >= self.deadline else "cancelled"
        error = self.future.exception()
        if error is None:
            return "scored"
        return "expired" if isinstance(error, DeadlineExceeded) else "failed"

    client: Hashable = ""
    is_long: bool = False
    overtakes: bool = False
    """Whether this item is in a batch that may be scored between the steps of another one."""

    @property
    def kind(self) -> Kind:
        """Only items of the same kind are scored together; otherwise short ones would wait for long ones."""
        return Kind(self.label, self.models, self.is_long)

    def is_finished(self) -> bool:
        """Whether the item is scored, failed or cancelled. First lets an item past its deadline fail."""
        if not self.future.done() and time.monotonic() >= self.deadline:
            self.fail(DeadlineExceeded("the deadline passed before scoring began"))
        return self.future.done()

    def fail(self, error: Exception) -> None:
        """Finish the item with an error, unless it is already finished."""
        if not self.future.done():
            self.future.set_exception(error)
            # Mark the exception as retrieved: if the caller is gone, asyncio would log it.
            self.future.exception()


LANES_PER_WORKER = 2
LONG_SHARE = 1 / 4
"""An item that costs more than this share of a batch is long."""
LIGHT_SHARE = 1 / 4
"""A light client has at most this share of the work of the clients that most of the work belongs to."""


class Demand:
    """The unfinished work of each client, waiting or in batches."""

    def __init__(self) -> None:
        self._costs: Counter[Hashable] = Counter()
        self.total = self._squares = 0

    def add(self, client: Hashable, cost: int) -> None:
        """Add to a client's work, or remove from it."""
        before = self._costs[client]
        after = before + cost
        self.total += cost
        self._squares += after * after - before * before
        if after:
            self._costs[client] = after
        else:
            del self._costs[client]

    def of(self, client: Hashable) -> int:
        """Return the cost of a client's work."""
        return self._costs[client]

    @property
    def typical(self) -> float:
        """The work of the client that a token belongs to, on average over all tokens; 0 without any work."""
        return self._squares / self.total if self.total else 0.0


StartedBatch = tuple[Batch, ScoreRequest, list[PhaseTiming]]
"""A batch whose trie has been built, its first request, and the timings of building."""


class Batcher:
    """Score work items in batches.

    Args:
        offloader: builds the tries.
        max_batch_tokens: largest batch, in tokens; an item that has more is a batch by itself.
        wait_ms: how long a batch waits for more items before it is taken from the queue.
        on_scored: called for each batch that was scored, with the seconds for which it kept a worker busy.
        on_failed: called for each batch that failed.
        watch: returns a context in which a worker scores a batch, unless that overtakes another one.
    """

    def __init__(
        self,
        pool: WorkerPool,
        offloader: Offloader,
        max_batch_tokens: int,
        wait_ms: float = 0.0,
        on_scored: Callable[[Sequence[WorkItem], ScoredBatch, float], None] = lambda *_: None,
        on_failed: Callable[[], None] = lambda: None,
        watch: Callable[[Worker, Sequence[WorkItem]], AbstractContextManager[None]] = lambda *_: (
            nullcontext()
        ),
    ) -> None:
        self._pool, self._offloader = pool, offloader
        self._max_batch_tokens, self._wait_s = max_batch_tokens, wait_ms / 1e3
        self.long_tokens = LONG_SHARE * max_batch_tokens
        """Cost above which an item is long."""
        self._on_scored, self._on_failed, self._watch = on_scored, on_failed, watch
        self._queue: TwoLevelQueue[WorkItem] = TwoLevelQueue(
            WorkItem.is_finished, lambda: bool(self._in_batches)
        )
        self._in_batches: Counter[Hashable] = Counter()  # cost by client
        self._demand = Demand()
        self._changed = asyncio.Event()  # set when a lane may find something to do
        self._lanes: list[asyncio.Task[None]] = []
        self._unfinished: set[WorkItem] = set()
        pool.on_lost = self._fail_lost

    def start(self) -> None:
        n_workers = len(self._pool.workers)
        lanes = [self._next_batch] * LANES_PER_WORKER * n_workers + [self._next_overtaking] * n_workers
        self._lanes = [asyncio.create_task(self._run_lane(next_batch)) for next_batch in lanes]

    async def stop(self) -> None:
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)

    @property
    def n_waiting(self) -> int:
        """Number of items in the queue."""
        return len(self._queue)

    @property
    def advice(self) -> str:
        """What to do about lists that were not scored in time."""
        if self._pool.n_alive:
            return "allow more time or permit a fallback"
        return "no worker has the models, which are being loaded again; try again later"

    def put(self, item: WorkItem, client: Hashable, *, urgent: bool = False) -> None:
        """Queue an item; ``item.future`` will receive its scores or an error."""
        item.client, item.is_long = client, item.cost > self.long_tokens
        item.leave_queue = self._queue.put(
            item, item.cost, client=client, kind=item.kind, size=item.size, urgent=urgent
        )
        self._unfinished.add(item)
        self._demand.add(client, item.cost)
        item.future.add_done_callback(lambda _: self._forget(item))
        self._changed.set()

    def _forget(self, item: WorkItem) -> None:
        self._unfinished.discard(item)
        self._demand.add(item.client, -item.cost)

    def cancel(self, items: Sequence[WorkItem]) -> None:
        """Cancel the items that are not finished."""
        for item in items:
            if not item.future.done():
                item.future.cancel()
                item.leave_queue()

    def costs_before(
        self, client: Hashable, work: Work, expected: Mapping[Hashable, Work] | None = None
    ) -> Mapping[Hashable, float]:
        """Predict the cost of what is scored before the last of some new items, by client; see ``FairQueue``.

        Short items of a light client need not wait for the batches that it may overtake.
        """
        overtakes = work.cost <= self.long_tokens * work.items and self._is_light(client, work.cost)
        overtaken = self.long_tokens if overtakes else math.inf
        costs = Counter(self._queue.costs_before(client, work, expected, overtaken))
        in_batches = self._in_batches
        share = min(1.0, self.long_tokens / max(1, in_batches.total())) if overtakes else 1.0
        for other, cost in in_batches.items():
            costs[other] += cost * share  # type: ignore[assignment]
        return costs

    def _fail_lost(self, label: str) -> None:
        """Fail the items of a bundle that no worker has any more, and none can load."""
        for item in [item for item in self._unfinished if item.label == label]:
            item.fail(ModelRefused(f"model {label} was lost with its worker, and cannot be loaded again"))
            item.leave_queue()

    async def _run_lane(self, next_batch: Callable[[], Awaitable[list[WorkItem]]]) -> None:
        while True:
            items = await next_batch()
            try:
                await self._serve(items)
            except Exception as error:  # if the lane ended, later items would wait for ever
                log.error("a batch failed", exc_info=error)
                for item in items:
                    item.fail(ScoringError("a batch failed unexpectedly"))
            finally:
                for item in items:
                    self._in_batches[item.client] -= item.cost
                self._in_batches = +self._in_batches  # without zeros
                self._changed.set()
            # Let the lane that now has the worker fill up its batch first.
            await asyncio.sleep(0)

    async def _next_batch(self) -> list[WorkItem]:
        """Wait for items and take those of the next batch."""
        while True:
            while not len(self._queue):
                self._changed.clear()
                await self._changed.wait()
            if self._wait_s:
                await asyncio.sleep(self._wait_s)
            if items := self._take():  # empty if all were finished
                return items

    async def _next_overtaking(self) -> list[WorkItem]:
        """Wait until short items of light clients may overtake a batch, and their turn is near; take them.

        Other lanes take them too. But when one batch of a heavy client is being scored, the other lane has
        another, which waits for its end.
        """
        while True:
            if self._pool.n_overtakable and (items := self._take_light()):
                return items
            self._changed.clear()
            await self._changed.wait()

    def _is_light(self, client: Hashable, more: float = 0.0) -> bool:
        """Whether a client wants little, compared with the clients that most of the work belongs to.

        Then its items should not wait for their batches, nor be scored in one of them. If all clients want
        about as much, overtaking would only make batches small, which take longer.

        Args:
            more: work that the client is about to add.
        """
        own = self._demand.of(client) + more
        return self._demand.total > self.long_tokens and own <= LIGHT_SHARE * self._demand.typical

    def _take(self) -> list[WorkItem]:
        """Take the items of the next batch."""
        if items := self._take_light():
            return items
        return self._begin(self._queue.take(self._max_batch_tokens, lambda one: not self._is_light(one)))

    def _take_light(self, batch: Sequence[WorkItem] = ()) -> list[WorkItem]:
        """Take short items of light clients, which join a batch of such items, or are one by themselves.

        A batch of a heavy client is worth many lists of a light one. So light clients may be ahead of their
        turn by as much as they may put into a batch.
        """
        most, items = int(self.long_tokens), list(batch)
        budget = most - sum(item.size for item in items)

        def accepts(client: Hashable, kind: Kind) -> bool:
            return not kind.is_long and kind == (items[0].kind if items else kind) and self._is_light(client)

        while taken := self._queue.take_early(budget, accepts, most):
            taken[0].overtakes = True
            items += taken
            budget -= taken[0].size
        return self._begin(items[len(batch) :])

    def _begin(self, items: list[WorkItem]) -> list[WorkItem]:
        for item in items:
            self._in_batches[item.client] += item.cost
        if items:
            self._changed.set()  # the next item may be of another kind
        return items

    async def _serve(self, items: list[WorkItem]) -> None:
        """Score a batch, with items that join it; if that fails, score each item individually, once."""
        error = await self._score_batch(items)
        if error is None:
            return
        self._on_failed()
        log.warning(
            "a batch failed; its lists are scored one by one",
            lists=len(items),
            requests=sorted({item.request_id for item in items}),
            error=str(error),
            exc_info=None if isinstance(error, Unavailable) else error,
        )
        remaining = deque(items)
        while remaining:
            try:
                # Keep the worker for all items: otherwise each of them would wait for its turn.
                async with self._pool.acquire(overtakes=items[0].overtakes) as worker:
                    while remaining and worker.alive:
                        item = remaining.popleft()
                        if not item.is_finished() and (error := await self._try_to_score(worker, [item])):
                            item.fail(error)
            except Unavailable as no_worker:
                while remaining:
                    remaining.popleft().fail(no_worker)

    async def _score_batch(self, items: list[WorkItem]) -> Exception | None:
        """Score the unfinished items, and return the error if that fails.

        Compatible items that arrive before a worker is free join the batch, and are appended to ``items``: a
        list costs about 1.5 times as much alone as in a batch, and rebuilding the trie costs very little.
        """
        unfinished = [item for item in items if not item.is_finished()]
        started = await self._start(unfinished)
        try:
            async with self._pool.acquire(overtakes=items[0].overtakes) as worker:
                self._changed.set()  # others may overtake this batch
                batch = [item for item in unfinished if not item.is_finished()]
                joining = self._take_compatible(batch)
                items += joining
                batch += joining
                if not batch:
                    return None
                return await self._try_to_score(worker, batch, started if batch == unfinished else None)
        except Unavailable as error:
            return error

    async def _try_to_score(
        self, worker: Worker, items: list[WorkItem], started: StartedBatch | None = None
    ) -> Exception | None:
        """Score items. If that fails, return the error, and stop the worker if the worker caused it.

        Args:
            started: the batch of the items; None: start one.
        """
        try:
            started = started or await self._start(items)
            with nullcontext() if items[0].overtakes else self._watch(worker, items):
                await self._score(worker, items, started)
        except Exception as error:
            is_fault = isinstance(error, WorkerLost | TimeoutError)
            if not is_fault and all(item.future.done() for item in items):
                return None  # it was abandoned
            await self._pool.check(worker, error)
            return error
        return None

    def _take_compatible(self, items: Sequence[WorkItem]) -> list[WorkItem]:
        """Take those waiting items from the queue that fit into one batch together with ``items``."""
        if not items:
            return []
        if items[0].overtakes:
            return self._take_light(items)
        budget = self._max_batch_tokens - sum(item.size for item in items)
        return self._begin(self._queue.take_more(items[0].kind, budget, lambda one: not self._is_light(one)))

    async def _start(self, items: Sequence[WorkItem]) -> StartedBatch:
        """Build the trie of a batch."""
        batch = Batch([item.part for item in items], items[0].models if items else ())
        # Urgent, because a worker would wait.
        size = sum(item.size for item in items)
        request, timings = await self._offloader.run(batch.advance, size, urgent=True)
        assert request is not None  # every batch has a trie
        return batch, request, timings

    async def _score(self, worker: Worker, items: Sequence[WorkItem], started: StartedBatch) -> None:
        """Have a worker answer all requests of a batch, and give each item its part of the scores."""
        began_at = time.perf_counter()
        batch, first_request, timings = started
        request: ScoreRequest | None = first_request
        first: WorkerScores | None = None
        seconds: Counter[str] = Counter()
        busy_s = 0.0  # without the batches that overtook this one
        try:
            while request is not None:
                label, encoders = items[0].label, sorted(request.encoders)
                overtakes = items[0].overtakes
                job = ScoreJob(
                    label,
                    request.trie,
                    request.models,
                    encoders,
                    request.surface,
                    overtakes,
                    request.words,
                )
                scores = await run_within(self._pool.timeout_s, score_while_needed(worker, job, items))
                if first is None:
                    first = scores
                    self._pool.record_success()
                seconds.update(scores.seconds)
                scored_at = time.perf_counter()
                # Add the scores to the batch, and build what has to be scored next.
                advance = functools.partial(batch.advance, scores.scores)
                request, _ = await self._offloader.run(advance, batch.tokens_asked, urgent=True)
                busy_s += sum(scores.seconds.values()) + time.perf_counter() - scored_at
        finally:
            batch.close()
        assert first is not None
        timings = [*timings, *timings_from_seconds(seconds, began_at)]
        scored = ScoredBatch(batch, timings, first.context_words)
        for index, item in enumerate(items):
            if not item.future.done():
                queue = PhaseTiming(QUEUE, item.queued_at, began_at - item.queued_at)
                item.future.set_result(ItemScores(batch.part(index), scored, queue))
        self._on_scored(items, scored, busy_s)


def count_by_client(items: Sequence[WorkItem]) -> Counter[Hashable]:
    """Return the cost of items by client, in tokens."""
    tokens = Counter[Hashable]()
    for item in items:
        tokens[item.client] += item.cost
    return tokens


async def score_while_needed(worker: Worker, job: ScoreJob, items: Sequence[WorkItem]) -> WorkerScores:
    """Have a worker score a job until the last of its items is finished, if that is earlier.

    Raises:
        Unavailable: all items are finished: their callers have gone, or their deadlines have passed.
    """
    scoring = asyncio.ensure_future(worker.score(job))
    needed = asyncio.ensure_future(asyncio.wait([item.future for item in items]))
    try:
        await asyncio.wait((scoring, needed), return_when=asyncio.FIRST_COMPLETED)
        if not scoring.done():
            scoring.cancel()
            await asyncio.wait((scoring,))  # a worker that does not even end its step hangs
            raise abandoned_error()
        return scoring.result()
    finally:
        scoring.cancel()
        needed.cancel()


FALLBACK_SHARE, FALLBACK_BOUNDS_S = 0.2, (0.03, 0.25)
"""Time kept for the fallback: this share of the time to the deadline, but at least the first and at most the
second of these bounds."""
MAX_RESPONSE_SHARE = 0.5
"""If a fallback is permitted, at most this share of the time to the deadline is kept for the response."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """Client, deadline and permitted fallback of a request."""

    client: Hashable
    request_id: str
    arrived_at: float
    """Arrival of the request, in ``time.perf_counter`` seconds."""
    deadline: float
    """Deadline, in ``time.monotonic`` seconds."""
    fallback: int = pb.FALLBACK_UNSPECIFIED
    response_s: float = 0.0
    """Time that deciding and writing the response will take, in seconds."""

    @property
    def remaining_s(self) -> float:
        """Time to the deadline."""
        return self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class ListOutcome:
    """The scores of one list, or the error that prevented its scoring."""

    items: tuple[ItemScores, ...] = ()
    """Scores of the list's work items, in the order of their hypotheses."""
    degradation: pb.Degradation = pb.DEGRADATION_UNSPECIFIED
    error: Exception | None = None


class Dispatcher:
    """Score lists by means of a batcher: divide them into work items, and use fallbacks before a deadline.

    Args:
        record_item: called with the outcome of each item, and how long it was queued if it was scored.
    """

    def __init__(
        self,
        batcher: Batcher,
        max_batch_tokens: int,
        record_item: Callable[[str, float | None], None] = lambda outcome, queue_s: None,
    ) -> None:
        self._batcher, self._max_batch_tokens, self._record_item = batcher, max_batch_tokens, record_item

    async def score_lists(
        self,
        ranker: ListRanker,
        lists: Sequence[PreparedList],
        call: CallContext,
        *,
        late: bool = False,
    ) -> list[ListOutcome]:
        """Return the outcome of each list, in input order.

        Args:
            late: skip complete scoring, for which there is no time, and use only the permitted fallback.

        Raises:
            DeadlineExceeded: the deadline passed before all lists were scored.
        """
        outcomes: dict[int, ListOutcome] = {}
        fallback, deadline, reserve_s = call.fallback, call.deadline, 0.0
        if fallback:
            remaining_s = call.remaining_s
            low, high = FALLBACK_BOUNDS_S
            reserve_s = min(max(FALLBACK_SHARE * remaining_s, low), high)
            deadline -= min(call.response_s, MAX_RESPONSE_SHARE * max(0.0, remaining_s))
        if not late:
            until = deadline - reserve_s
            outcomes |= await self._score_until(ranker, lists, range(len(lists)), call, until)
        missing = [index for index in range(len(lists)) if index not in outcomes]
        if missing and fallback:
            until = deadline - reserve_s / 2
            outcomes |= await self._score_until(ranker, lists, missing, call, until, ngram_only=True)
        if fallback == pb.FALLBACK_FIRST_PASS:
            for index in missing:
                outcomes.setdefault(index, ListOutcome(degradation=pb.DEGRADATION_FIRST_PASS))
        if len(outcomes) < len(lists):
            raise DeadlineExceeded(
                "the deadline (the caller's, or max_wait_s) passed before all lists were scored; "
                + self._batcher.advice
            )
        return [outcomes[index] for index in range(len(lists))]

    async def _score_until(
        self,
        ranker: ListRanker,
        lists: Sequence[PreparedList],
        indices: Sequence[int],
        call: CallContext,
        until: float,
        *,
        ngram_only: bool = False,
    ) -> dict[int, ListOutcome]:
        """Return, by index, the outcomes of the lists that are scored in time.

        Args:
            until: when to stop waiting for scores, in ``time.monotonic`` seconds.
            ngram_only: score with the n-gram model alone, before other waiting items.
        """
        bundle, models = ranker.bundle, (ranker.bundle.ngram,) if ngram_only else ()
        degradation = pb.DEGRADATION_NGRAM if ngram_only else pb.DEGRADATION_UNSPECIFIED
        max_tokens, backward = self._max_batch_tokens, bool(bundle.backward)
        parts = {index: list(split(lists[index], max_tokens, backward=backward)) for index in indices}
        size = sum(part.cost for one in parts.values() for part in one)
        depth = (
            0 if ngram_only else depth_tokens(bundle, [lists[index] for index in indices], size, max_tokens)
        )
        items_by_list = {
            index: [
                WorkItem(part, bundle.label, until, models, depth * part.cost // size, call.request_id)
                for part in one
            ]
            for index, one in parts.items()
        }
        all_items = [item for items in items_by_list.values() for item in items]
        for item in all_items:
            self._batcher.put(item, call.client, urgent=ngram_only)
        try:
            if all_items:
                futures = [item.future for item in all_items]
                await asyncio.wait(futures, timeout=max(0.0, until - time.monotonic()))
            return {
                index: make_outcome(items, degradation)
                for index, items in items_by_list.items()
                # settled: scored, or failed with an error that more time would not have prevented
                if all(
                    item.future.done() and not isinstance(item.future.exception(), DeadlineExceeded)
                    for item in items
                )
            }
        finally:
            for item in all_items:
                outcome = item.outcome
                queue_s = item.future.result().queue.seconds if outcome == "scored" else None
                self._record_item(outcome, queue_s)
            self._batcher.cancel(all_items)


def make_outcome(items: Sequence[WorkItem], degradation: pb.Degradation) -> ListOutcome:
    """Combine the results of a list's work items, all of which are finished. If some have errors, the first
    of these is the error of the list."""
    for item in items:
        error = item.future.exception()
        if isinstance(error, Exception):
            return ListOutcome(error=error)
    return ListOutcome(tuple(item.future.result() for item in items), degradation)


WARNING_INTERVAL_S = 60.0
"""Shortest time between two warnings that the same client is starved."""
MESSAGE_THREADS = 2
"""Threads that convert messages. There are two, so that one large message does not delay all small ones. More
would only wait for Python's global interpreter lock."""
CLIENT_SHARE = 3 / 4
"""Largest share of the tokens in flight that one client may hold, so that there is room for a newcomer."""


class ScoringEngine:
    """Admits requests, and has their lists scored by the workers of a pool."""

    def __init__(self, settings: ServiceSettings, pool: WorkerPool, metrics: Metrics) -> None:
        self._metrics = metrics
        self._warned: dict[Hashable, float] = {}  # when a starved client was last in the log, oldest first
        self._threads = ThreadPoolExecutor(MESSAGE_THREADS, "messages")
        self.offloader = Offloader(self._threads, MESSAGE_THREADS)
        """Runs the jobs that prepare requests and write responses."""
        self.batcher = Batcher(
            pool,
            self.offloader,
            settings.max_batch_tokens,
            settings.batch_wait_ms,
            self._record_batch,
            metrics.failed_batches.inc,
            lambda worker, items: self._slowdown.watch(worker, count_by_client(items)),
        )
        self._pool, self._pace = pool, Pace()
        # After less than a quarter of a batch per worker, the pace does not tell how long a list takes.
        self._slowdown = Slowdown(self._pace, settings.max_batch_tokens // 4, settings.workers)
        self.admission = self._create_admission(settings)
        self.late_admission = self._create_admission(settings)
        """Admits refused calls whose caller permits a fallback."""
        self.dispatcher = Dispatcher(self.batcher, settings.max_batch_tokens, metrics.record_item)

    async def stop(self) -> None:
        """Stop scoring; waiting items get no answer."""
        await self.batcher.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _record_batch(self, items: Sequence[WorkItem], scored: ScoredBatch, seconds: float) -> None:
        self._pace.record(count_by_client(items), seconds / len(self._pool.workers))
        self._metrics.record_batch(
            items[0].label,
            items=len(items),
            tokens=sum(int((item.part.prepared.word_counts[item.part.indices] + 1).sum()) for item in items),
            trie_edges=scored.batch.trie.n_edges,
            context_words=scored.context_words,
            timings=scored.timings,
        )

    def _create_admission(self, settings: ServiceSettings) -> Admission:
        max_tokens = settings.max_in_flight_tokens
        return Admission(
            Quota("lists", settings.max_in_flight_lists, settings.max_client_lists),
            Quota("tokens", max_tokens, int(CLIENT_SHARE * max_tokens)),
            self._slowdown.least_tokens * max(1, settings.workers),
            self.batcher.costs_before,
            self._pace,
            slowdown=lambda: self._slowdown.factor,
            max_item_tokens=settings.max_batch_tokens,
            is_idle=lambda: self._pool.n_idle > 0 and not self.batcher.n_waiting,
            ready_in_s=lambda: self._pool.ready_in_s,
            on_starved=self._record_starved,
        )

    def _record_starved(self, client: Hashable) -> None:
        self._metrics.starved_clients.inc()
        warned, now = self._warned, time.monotonic()
        while warned and now - warned[oldest := next(iter(warned))] >= WARNING_INTERVAL_S:
            del warned[oldest]
        if client not in warned:
            warned[client] = now
            log.warning("a client is refused again and again although a worker is idle", client=str(client))
