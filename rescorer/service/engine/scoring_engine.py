"""What stands between a request and its scores: admission, batches, and threads for large messages."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rescorer.service.engine.admission import Admission
from rescorer.service.engine.batcher import Batcher
from rescorer.service.engine.dispatch import Dispatcher
from rescorer.service.engine.offload import Offloader
from rescorer.service.engine.quota import Quota
from rescorer.service.engine.work_item import ScoredBatch, WorkItem
from rescorer.service.observability.metrics import Metrics
from rescorer.service.settings import ServiceSettings
from rescorer.service.workers.pool import WorkerPool

MESSAGE_THREADS = 2
"""Threads that convert messages. Two, so that a large message does not delay all small ones; more would wait
for Python's global interpreter lock."""
CLIENT_SHARE = 3 / 4
"""Largest share of the tokens in flight that one client may hold, so that there is room for a newcomer."""


class ScoringEngine:
    """Admits requests and has their lists scored by the workers of a pool."""

    def __init__(self, settings: ServiceSettings, pool: WorkerPool, metrics: Metrics) -> None:
        self._metrics = metrics
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
        )
        self.admission = create_admission(settings, self.batcher)
        self.late_admission = create_admission(settings, self.batcher)
        """Admits refused calls whose caller permits a fallback."""
        self.dispatcher = Dispatcher(self.batcher, settings.max_batch_tokens, metrics)

    async def stop(self) -> None:
        """Stop scoring, whatever waits."""
        await self.batcher.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _record_batch(self, items: Sequence[WorkItem], scored: ScoredBatch) -> None:
        self.admission.throughput.record(sum(item.cost for item in items))
        self._metrics.record_batch(
            items[0].label,
            items=len(items),
            tokens=sum(len(item.part.prepared.words[i]) + 1 for item in items for i in item.part.indices),
            trie_edges=scored.batch.trie.n_edges,
            context_words=scored.context_words,
            timings=scored.timings,
        )


def create_admission(settings: ServiceSettings, batcher: Batcher) -> Admission:
    return Admission(
        Quota("lists", settings.max_in_flight_lists, settings.max_client_lists),
        Quota("tokens", settings.max_in_flight_tokens, int(CLIENT_SHARE * settings.max_in_flight_tokens)),
        # After less than a quarter of a batch per worker, throughput does not predict how long a list takes.
        settings.max_batch_tokens // 4 * max(1, settings.workers),
        batcher.cost_before,
    )
