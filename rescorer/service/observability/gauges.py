"""Owns what the gauges show of a running server, read when somebody asks for the metrics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import Gauge

from rescorer.service.engine.admission import Admission, Room
from rescorer.service.engine.batcher import Batcher
from rescorer.service.models.repository import ModelRepository
from rescorer.service.observability.metrics import Metrics
from rescorer.service.workers.pool import ScorerPool

READ_LIMIT_S = 5.0
"""While the event loop is stuck for longer, whoever asks gets an error, and Prometheus sees a server down."""


class Gauges:
    """Sets a server's gauges; made in its event loop.

    Args:
        streams: those that are open.
    """

    def __init__(
        self,
        metrics: Metrics,
        pool: ScorerPool,
        batcher: Batcher,
        admission: Admission,
        streams: Room,
        models: ModelRepository,
    ) -> None:
        self._metrics = metrics
        self._pool, self._batcher, self._admission = pool, batcher, admission
        self._streams, self._models = streams, models
        self._loop = asyncio.get_running_loop()
        self._shown: dict[Gauge, set[tuple[str, ...]]] = {}

    def read(self) -> None:
        """Sets them all, from any thread but the event loop's: what they show is the loop's own."""
        asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(READ_LIMIT_S)

    async def _read(self) -> None:
        metrics, scorers = self._metrics, list(enumerate(self._pool.scorers))
        metrics.queue_pieces.set(self._batcher.waiting)
        metrics.in_flight_lists.set(self._admission.lists.held)
        metrics.in_flight_tokens.set(self._admission.tokens.held)
        metrics.streams.set(self._streams.held)
        metrics.scorers_alive.set(sum(each.alive for _, each in scorers))
        metrics.models_refused.set(len(self._models.refused))
        self._show(metrics.model_bytes, {(each.label,): each.memory_bytes for each in self._models.versions})
        self._show(
            metrics.scorer_bytes, {(str(i),): resident_bytes(each.pid) for i, each in scorers if each.pid}
        )
        self._show(
            metrics.device_bytes,
            {(str(i), kind): size for i, each in scorers for kind, size in each.device_bytes.items()},
        )

    def _show(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """These values, and no longer those of labels that are gone."""
        for labels in self._shown.get(gauge, set()) - values.keys():
            gauge.remove(*labels)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        self._shown[gauge] = set(values)


def resident_bytes(pid: int) -> int:
    """Memory of a process; 0 where it is gone, or this is not Linux."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
