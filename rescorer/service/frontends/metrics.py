"""Serve the metrics of several front ends and their supervisor as those of one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from rescorer.service.observability.metrics import DROPPED_LINES, READ_TIMEOUT_S, DroppedLinesCollector

FRONT_END = "front_end"
"""Label that distinguishes the samples of the front ends."""
SERVER_WIDE = (
    "rescorer_device_memory_bytes",
    "rescorer_model_memory_bytes",
    "rescorer_model_versions_missing",
    "rescorer_models_refused",
    "rescorer_worker_resident_memory_bytes",
    "rescorer_workers_alive",
)
"""Metrics of the whole server, for which all front ends eventually report the same value. Each is reported
once, with the largest value."""


class FrontEndMetrics(Collector):
    """Metrics of all front ends and the supervisor; must be created in the supervisor's event loop.

    Args:
        read: reads the metrics of the front ends that respond, as text by number of the front end.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Mapping[int, str]]]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        own = self._own = CollectorRegistry()
        self._up = Gauge("rescorer_front_ends_up", "Front ends that respond.", registry=own)
        self.front_end_restarts = Counter(
            "rescorer_front_end_restarts_total", "Front ends that died or were terminated.", registry=own
        )
        self.worker_restarts = Counter(
            "rescorer_worker_restarts_total", "Workers that died or were terminated.", registry=own
        )
        own.register(DroppedLinesCollector())
        ProcessCollector(registry=own)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise registering this collector would read the front ends' metrics

    def collect(self) -> Iterable[Metric]:
        """Read and merge all metrics; called from any thread but the event loop's."""
        texts = asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(READ_TIMEOUT_S)
        self._up.set(len(texts))
        return merge_metrics(texts, self._own.collect())


def merge_metrics(texts: Mapping[int, str], own: Iterable[Metric] = ()) -> list[Metric]:
    """Merge the metrics of several front ends and their supervisor into those of one server.

    Args:
        texts: metrics of each front end in Prometheus' text format, by number of the front end. Those whose
            names begin with ``rescorer_`` are ignored if the supervisor reports them too, because the workers
            belong to the supervisor.
        own: the supervisor's metrics.
    """
    families = {family.name: family for family in own}
    of_supervisor = {name for name in families if name.startswith("rescorer_")} - {DROPPED_LINES}
    largest: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for number, text in texts.items():
        for family in text_string_to_metric_families(text):
            if family.name in of_supervisor:
                continue
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for name, labels, value, *_ in family.samples:
                if family.name in SERVER_WIDE:
                    key = name, tuple(labels.items())
                    largest[key] = max(value, largest.get(key, value))
                else:
                    merged.add_sample(name, {**labels, FRONT_END: str(number)}, value)
    for (name, label_items), value in largest.items():
        families[name].add_sample(name, dict(label_items), value)
    return list(families.values())
