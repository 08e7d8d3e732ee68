"""Set the gauges of a running server whenever its metrics are read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from prometheus_client import Gauge

from rescorer.service.engine.scoring_engine import ScoringEngine
from rescorer.service.limits.call_memory import CallMemory
from rescorer.service.limits.stream_slots import StreamSlots
from rescorer.service.models.repository import ModelRepository
from rescorer.service.observability.metrics import READ_TIMEOUT_S, Metrics
from rescorer.service.observability.process_memory import resident_bytes
from rescorer.service.workers.pool import WorkerPool


class Gauges:
    """Read the state of a server into its gauges; must be created in the server's event loop.

    Args:
        streams: the places of open streams.
    """

    def __init__(
        self,
        metrics: Metrics,
        pool: WorkerPool,
        engine: ScoringEngine,
        streams: StreamSlots,
        memory: CallMemory,
        models: ModelRepository,
    ) -> None:
        self._metrics = metrics
        self._pool, self._engine = pool, engine
        self._streams, self._memory, self._models = streams, memory, models
        self._loop = asyncio.get_running_loop()
        self._labels_set: dict[Gauge, set[tuple[str, ...]]] = {}

    def read(self) -> None:
        """Set all gauges; called from any thread but the event loop's, which owns the state."""
        asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(READ_TIMEOUT_S)

    async def _read(self) -> None:
        metrics, workers = self._metrics, list(enumerate(self._pool.workers))
        admission = self._engine.admission
        metrics.queue_pieces.set(self._engine.batcher.n_waiting)
        metrics.in_flight_lists.set(admission.lists.held)
        metrics.in_flight_tokens.set(admission.tokens.held)
        metrics.streams.set(self._streams.held)
        metrics.workers_alive.set(self._pool.n_alive)
        metrics.in_flight_bytes.set(self._memory.quota.held)
        metrics.unread_bytes.set(self._memory.unread_bytes)
        metrics.models_refused.set(len(self._models.refused))
        metrics.versions_missing.set(len(self._models.missing))
        self._set_labelled(
            metrics.model_bytes, {(version.label,): version.memory_bytes for version in self._models.versions}
        )
        self._set_labelled(
            metrics.worker_bytes,
            {(str(i),): sum(map(resident_bytes, worker.pids)) for i, worker in workers if worker.pids},
        )
        self._set_labelled(
            metrics.device_bytes,
            {(str(i), kind): size for i, worker in workers for kind, size in worker.device_bytes.items()},
        )

    def _set_labelled(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """Set a gauge's values by labels, and remove the labels that no longer exist."""
        for labels in self._labels_set.get(gauge, set()) - values.keys():
            gauge.remove(*labels)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        self._labels_set[gauge] = set(values)
