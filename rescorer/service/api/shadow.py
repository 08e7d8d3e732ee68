"""The shadow: a second bundle that scores a share of the answered lists, for comparison with the primary one.

The shadow cannot affect callers. A list is offered to it after its answer has been sent, waits in a short
separate queue, and is dropped while requests wait for the primary bundle. The models of the shadow are in a
separate process of low priority, so that their errors, their memory and Python's global interpreter lock do
not affect the primary bundle.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import structlog

from rescorer.errors import InputError, RescorerError
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.scoring.ranker import ListRanker
from rescorer.service.api.rescoring import PreparedRequest, RescoredResponse, prepare_lists, rank_list
from rescorer.service.engine.engine import Batcher, CallContext, Dispatcher, ListOutcome
from rescorer.service.engine.offloader import Offloader
from rescorer.service.engine.request_bounds import RescoreRequest
from rescorer.service.metrics import Metrics
from rescorer.service.repository import ModelRepository
from rescorer.service.settings import ServiceSettings
from rescorer.service.workers.pool import WorkerPool

log = structlog.get_logger()

Result = TypeVar("Result")

MAX_WAITING_LISTS = 64
"""Largest number of lists that wait for the shadow, each with its request in memory; more are dropped."""
MAX_WAITING_BYTES = 16 << 20
"""Largest size of the requests and answers of these lists. In memory they may take several times as much."""


class AnsweredList(NamedTuple):
    """A list that the primary bundle has answered."""

    request: RescoreRequest
    list_index: int
    """0-based index of the list in the request."""
    answer: pb.RescoredList
    request_id: str
    n_bytes: int
    """Size of the request and its answer; 0 for all lists of a request but the first one."""


class Shadow:
    """Compares rankings by a second bundle with the answers that were sent. Create it in the event loop.

    Args:
        models: repository that contains only the shadow, loaded by ``pool``.
        primary: returns the label of the primary bundle.
        is_busy: whether requests wait for the primary bundle.
    """

    def __init__(
        self,
        models: ModelRepository,
        pool: WorkerPool,
        primary: Callable[[], str],
        is_busy: Callable[[], bool],
        settings: ServiceSettings,
        metrics: Metrics,
    ) -> None:
        self.models, self.pool = models, pool
        self._primary, self.is_busy = primary, is_busy
        self._settings, self._metrics = settings, metrics
        self._thread = ThreadPoolExecutor(1, "shadow")
        self._batcher = Batcher(pool, Offloader(self._thread, small_tokens=0), settings.max_batch_tokens)
        self._dispatcher = Dispatcher(self._batcher, settings.max_batch_tokens)
        self._waiting: asyncio.Queue[AnsweredList] = asyncio.Queue(MAX_WAITING_LISTS)
        self._waiting_bytes = 0
        self._running: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._is_started = False

    @property
    def n_waiting(self) -> int:
        """Number of lists that wait to be compared."""
        return self._waiting.qsize()

    def start(self) -> None:
        """Load the bundle in the background, then compare lists until ``stop``."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop immediately, without comparing the waiting lists."""
        tasks = [task for task in (self._running, self._reloading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._batcher.stop()
        await self.pool.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def reload(self, *, retry_refused: bool) -> None:
        """Reload the bundle in the background; errors are logged.

        Args:
            retry_refused: whether to retry bundles that were refused and have not changed since.
        """
        if self._is_started and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.create_task(self._reload(retry_refused))

    def offer(
        self,
        request: RescoreRequest,
        response: RescoredResponse,
        request_id: str,
    ) -> None:
        """Queue the chosen share of the lists of an answered request; never raises."""
        try:
            if response.model != self._primary():
                return
            n_bytes = -1  # not known yet
            for index, answer in enumerate(response.lists):
                is_complete = not answer.status.code and not answer.degradation
                if not (is_complete and is_chosen(request_id, answer.id, self._settings.shadow_share)):
                    continue
                n_bytes = request.ByteSize() + response.ByteSize() if n_bytes < 0 else n_bytes
                is_full = self._waiting.full() or self._waiting_bytes + n_bytes > MAX_WAITING_BYTES
                if self.is_busy() or is_full:
                    self._metrics.shadow_lists.labels("dropped").inc()
                else:
                    self._waiting.put_nowait(AnsweredList(request, index, answer, request_id, n_bytes))
                    self._waiting_bytes += n_bytes
                    n_bytes = 0
        except Exception as error:
            self._record_failure(request_id, error)

    async def _reload(self, retry_refused: bool) -> None:
        try:
            await self.models.reload(again=retry_refused)
        except RescorerError as error:
            log.error("the shadow cannot be loaded", error=str(error))

    async def _run(self) -> None:
        try:
            await self.pool.start()
            await self.models.start()
        except (RescorerError, OSError) as error:  # continue: a reload may succeed later
            log.error("the shadow cannot be loaded", error=str(error))
        self.pool.open()
        self._batcher.start()
        self._is_started = True
        while True:
            answered = await self._waiting.get()
            self._waiting_bytes -= answered.n_bytes
            if self.is_busy():
                self._metrics.shadow_lists.labels("dropped").inc()
                continue
            try:
                await self._compare(answered)
            except Exception as error:
                self._record_failure(answered.request_id, error)

    async def _compare(self, answered: AnsweredList) -> None:
        began_at = time.perf_counter()
        with self.models.lease() as ranker:
            prepared_request = await self._run_in_thread(prepare_list, ranker, answered, self._settings)
            deadline = time.monotonic() + self.pool.timeout_s
            call = CallContext("", answered.request_id, began_at, deadline)
            (outcome,) = await self._dispatcher.score_lists(ranker, prepared_request.valid_lists, call)
            agreement = await self._run_in_thread(compare_with_answer, prepared_request, outcome, answered)
        self._metrics.record_shadow_list(ranker.bundle.label, *agreement, time.perf_counter() - began_at)

    async def _run_in_thread(self, job: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job, *arguments)

    def _record_failure(self, request_id: str, error: Exception) -> None:
        self._metrics.shadow_lists.labels("failed").inc()
        log.warning("the shadow failed", request_id=request_id, error=repr(error))


def is_chosen(request_id: str, list_id: str, share: float) -> bool:
    """Whether a list is chosen for comparison. The choice depends only on the share and the two ids."""
    digest = blake2b(f"{request_id}\0{list_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64


def prepare_list(ranker: ListRanker, answered: AnsweredList, settings: ServiceSettings) -> PreparedRequest:
    """Prepare an answered list for scoring by the shadow, within the same limits as for the primary bundle.

    Raises:
        ConfigError: the request's weights do not fit the shadow, or it lacks a phrase list that the request
            names.
        InputError: the shadow cannot score the list.
    """
    request = answered.request
    prepared_request = prepare_lists(ranker, request, settings, [request.lists[answered.list_index]])
    for error in prepared_request.lists:
        if isinstance(error, InputError):
            raise error
    return prepared_request


def compare_with_answer(
    prepared_request: PreparedRequest, outcome: ListOutcome, answered: AnsweredList
) -> tuple[bool, float]:
    """Rank the list by the shadow's scores and compare the order with the answer.

    Returns:
        Whether the best hypothesis is the same, and the share of the pairs of hypotheses that are in the same
        order in both: (1 + Kendall's τ) / 2.

    Raises:
        RescorerError: the list could not be scored.
    """
    if outcome.error is not None:
        raise outcome.error
    (prepared,) = prepared_request.valid_lists
    ranked = rank_list(prepared_request, prepared, outcome)
    first = [hypothesis.original_rank - 1 for hypothesis in answered.answer.hypotheses]
    best = ranked.order[0]
    return first[0] in (best, *ranked.members[best]), compute_pairs_alike(first, ranked.order)


def compute_pairs_alike(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the share of pairs of items, among the items in both orders, that are in the same order in both.

    The share is 1 if there are no pairs.

    >>> compute_pairs_alike([2, 0, 1], [0, 2, 1])
    0.6666666666666667
    """
    ranks = {item: rank for rank, item in enumerate(second)}
    sorted_ranks: list[int] = []
    n_discordant = 0
    for item in first:
        if item in ranks:
            position = bisect(sorted_ranks, ranks[item])
            n_discordant += len(sorted_ranks) - position
            sorted_ranks.insert(position, ranks[item])
    n_pairs = len(sorted_ranks) * (len(sorted_ranks) - 1) // 2
    return 1.0 - n_discordant / n_pairs if n_pairs else 1.0
