"""Owns the metrics of a server of several fronts: theirs, read when asked for, and the supervisor's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from rescorer.service.observability.metrics import READ_TIMEOUT_S
from rescorer.service.observability.process_memory import resident_bytes
from rescorer.service.workers.worker import Worker

FRONT_END = "front_end"
"""The label that tells a front's samples from the others'."""
OF_ALL = ("rescorer_device_memory_bytes", "rescorer_model_memory_bytes", "rescorer_models_refused")
"""Of which each front tells the same, sooner or later: told once, the most of any."""


class FrontEndMetrics(Collector):
    """All of them; made in the event loop of the supervisor.

    Args:
        workers: of the server.
        read: what each front tells, by its number; of those that answer.
    """

    def __init__(
        self, workers: Sequence[Worker], read: Callable[[], Coroutine[Any, Any, Mapping[int, str]]]
    ) -> None:
        self._scorers, self._read = workers, read
        self._loop = asyncio.get_running_loop()
        own = self._own = CollectorRegistry()
        self._up = Gauge("rescorer_front_ends_up", "Fronts that answer.", registry=own)
        self.front_end_restarts = Counter(
            "rescorer_front_end_restarts_total", "Fronts that died.", registry=own
        )
        self._alive = Gauge("rescorer_workers_alive", "Workers that can score.", registry=own)
        self.worker_restarts = Counter(
            "rescorer_worker_restarts_total", "Workers that died or were given up.", registry=own
        )
        memory = "rescorer_worker_resident_memory_bytes", "Memory of a worker."
        self._bytes = Gauge(*memory, ["worker"], registry=own)
        ProcessCollector(registry=own)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return ()  # else the fronts would be asked as soon as this is registered

    def collect(self) -> Iterable[Metric]:
        """From any thread but the event loop's."""
        told = asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(READ_TIMEOUT_S)
        self._up.set(len(told))
        self._alive.set(sum(each.alive for each in self._scorers))
        for number, each in enumerate(self._scorers):
            self._bytes.labels(str(number)).set(resident_bytes(each.pid) if each.pid else 0)
        return merged(told, self._own.collect())


def merged(told: Mapping[int, str], own: Iterable[Metric] = ()) -> list[Metric]:
    """The metrics of several fronts and their supervisor as one server's.

    Args:
        told: what each front wrote, by its number. Of what the supervisor tells, too, only their ``process_``
            counts: the workers are the supervisor's.
        own: the supervisor's.
    """
    families = {each.name: each for each in own}
    of_supervisor = {name for name in families if name.startswith("rescorer_")}
    most: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for number, text in told.items():
        for family in text_string_to_metric_families(text):
            if family.name in of_supervisor:
                continue
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for name, labels, value, *_ in family.samples:
                if family.name in OF_ALL:
                    key = name, tuple(labels.items())
                    most[key] = max(value, most.get(key, value))
                else:
                    whole.add_sample(name, {**labels, FRONT_END: str(number)}, value)
    for (name, pairs), value in most.items():
        families[name].add_sample(name, dict(pairs), value)
    return list(families.values())
