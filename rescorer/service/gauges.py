"""Owns what the gauges show of a running server, read when somebody asks for the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from prometheus_client import Gauge

from rescorer.service.engine.admission import Admission, Quota
from rescorer.service.engine.batcher import Batcher
from rescorer.service.models.repository import ModelRepository
from rescorer.service.observability.metrics import READ_TIMEOUT_S, Metrics
from rescorer.service.observability.process_memory import resident_bytes
from rescorer.service.workers.pool import WorkerPool


class Gauges:
    """Sets a server's gauges; made in its event loop.

    Args:
        streams: those that are open.
    """

    def __init__(
        self,
        metrics: Metrics,
        pool: WorkerPool,
        batcher: Batcher,
        admission: Admission,
        streams: Quota,
        models: ModelRepository,
    ) -> None:
        self._metrics = metrics
        self._pool, self._batcher, self._admission = pool, batcher, admission
        self._streams, self._models = streams, models
        self._loop = asyncio.get_running_loop()
        self._shown: dict[Gauge, set[tuple[str, ...]]] = {}

    def read(self) -> None:
        """Sets them all, from any thread but the event loop's: what they show is the loop's own."""
        asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(READ_TIMEOUT_S)

    async def _read(self) -> None:
        metrics, workers = self._metrics, list(enumerate(self._pool.workers))
        metrics.queue_pieces.set(self._batcher.waiting)
        metrics.in_flight_lists.set(self._admission.lists.held)
        metrics.in_flight_tokens.set(self._admission.tokens.held)
        metrics.streams.set(self._streams.held)
        metrics.workers_alive.set(sum(each.alive for _, each in workers))
        metrics.models_refused.set(len(self._models.refused))
        self._show(metrics.model_bytes, {(each.label,): each.memory_bytes for each in self._models.versions})
        self._show(
            metrics.worker_bytes, {(str(i),): resident_bytes(each.pid) for i, each in workers if each.pid}
        )
        self._show(
            metrics.device_bytes,
            {(str(i), kind): size for i, each in workers for kind, size in each.device_bytes.items()},
        )

    def _show(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """These values, and no longer those of labels that are gone."""
        for labels in self._shown.get(gauge, set()) - values.keys():
            gauge.remove(*labels)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        self._shown[gauge] = set(values)
