"""Create the parts of a server from its settings."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from rescorer.errors import BundleError, ConfigError
from rescorer.runtime.cpu_count import count_cpus
from rescorer.service.api.shadow import Shadow
from rescorer.service.engine.batcher import Batcher
from rescorer.service.engine.quota import Quota
from rescorer.service.limits.call_memory import CallMemory
from rescorer.service.limits.stream_slots import StreamSlots
from rescorer.service.models.discovery import find_versions, select_versions
from rescorer.service.models.repository import ModelRepository
from rescorer.service.observability.metrics import Metrics
from rescorer.service.observability.tracing import Tracing
from rescorer.service.observability.tracing import create_tracing as create_otlp_tracing
from rescorer.service.settings import ServiceSettings
from rescorer.service.workers.pool import WorkerPool
from rescorer.service.workers.worker import MachineSettings, ProcessWorker, Worker
from rescorer.service.workers.worker_group import WorkerGroup

if TYPE_CHECKING:
    from rescorer.service.workers.model_host import LoadScorer

NICENESS = 5
"""Niceness of workers that use all cores. At niceness 0 the front end waits for the processor: refusals took
0.2 s instead of 0.06 s, and throughput fell from 135 to 116 lists per second."""
SHADOW_NICENESS = 15
"""Niceness of the shadow's worker, which leaves it a tenth of a contended core; with less the shadow would
not load in time and would be restarted."""

log = structlog.get_logger()


def create_workers(settings: ServiceSettings, load: LoadScorer | None) -> list[Worker]:
    """Create worker processes, or one thread of this process if the settings ask for none.

    Args:
        load: replaces ``TrieScorer.load`` in the thread, for tests.
    """
    if settings.workers:
        create = partial(create_process_worker, settings, niceness_of(settings))
        return [WorkerGroup(create) for _ in range(settings.workers)]
    # Only this branch needs KenLM and torch in the server's own process.
    from rescorer.service.workers.thread_worker import ThreadWorker
    from rescorer.trie_scorer import TrieScorer

    load = partial(
        load or TrieScorer.load, dtype=settings.dtype, context_cache_bytes=settings.context_cache_bytes
    )
    return [ThreadWorker(settings.device, threads_of(settings), load)]


def create_process_worker(
    settings: ServiceSettings, niceness: int, listening: socket.socket | None = None
) -> ProcessWorker:
    machine = MachineSettings(
        settings.device, threads_of(settings), settings.dtype, settings.context_cache_bytes
    )
    return ProcessWorker(machine, niceness, listening, settings.load_timeout_s)


def create_pool(
    settings: ServiceSettings,
    workers: Sequence[Worker],
    on_broken: Callable[[str], None],
    on_worker_lost: Callable[[], None] = lambda: None,
) -> WorkerPool:
    return WorkerPool(workers, on_broken, settings.worker_timeout_s, settings.load_timeout_s, on_worker_lost)


def niceness_of(settings: ServiceSettings) -> int:
    """Niceness of the workers: 0 if one core per front end remains for accepting and answering calls."""
    busy = settings.workers * threads_of(settings) if settings.device == "cpu" else 0
    return NICENESS if busy > count_cpus() - settings.front_ends else 0


def threads_of(settings: ServiceSettings) -> int:
    """Threads of the networks in each worker: the setting, or the worker's share of the cores.

    One core per front end remains for accepting and answering calls. More threads than cores would take turns
    and wait for each other at every step.
    """
    return settings.threads or max(1, (count_cpus() - settings.front_ends) // max(1, settings.workers))


def create_watches(settings: ServiceSettings) -> StreamSlots:
    """Create the places for open watches of the server's health."""
    names = "max_watches", "max_client_watches"
    return StreamSlots("watches", settings.max_watches, settings.max_client_watches, names)


def create_tracing(settings: ServiceSettings) -> Tracing | None:
    if settings.trace_endpoint is None:
        return None
    return create_otlp_tracing(
        settings.trace_endpoint, settings.trace_share, f"{socket.gethostname()}:{os.getpid()}"
    )


def create_call_memory(settings: ServiceSettings, metrics: Metrics) -> CallMemory:
    quota = Quota("bytes", settings.max_in_flight_bytes, settings.max_client_bytes)
    return CallMemory(quota, settings.max_unread_s, metrics.unread_answers.inc)


def create_repository(settings: ServiceSettings, pool: WorkerPool) -> ModelRepository:
    folder = settings.bundle or settings.repository
    if folder is None:
        raise ConfigError("nothing to serve: expected a bundle or a repository")
    repository = ModelRepository(
        pool,
        folder,
        single=settings.repository is None,
        models=settings.models,
        max_bytes=settings.max_model_bytes,
    )
    repository.dictionary, repository.language = settings.dictionary, settings.language
    pool.verify = repository.verify_unchanged
    return repository


def create_shadow(
    settings: ServiceSettings, models: ModelRepository, batcher: Batcher, metrics: Metrics
) -> Shadow | None:
    """Create the shadow if the settings name one; its models are not checked until they are loaded.

    Raises:
        BundleError: If there is no bundle of that name.
    """
    if not settings.shadow:
        return None
    repository = None if settings.shadow[0] in "./" else settings.repository
    folder, single = repository or Path(settings.shadow), repository is None
    names = () if single else (settings.shadow,)
    if not all(select_versions(find_versions(folder, single).versions, names).values()):
        raise BundleError(f"{folder}: has no bundle {settings.shadow} to use as the shadow")
    pool = create_pool(
        settings,
        [WorkerGroup(partial(create_process_worker, settings, SHADOW_NICENESS))],
        lambda reason: log.error("the shadow is stopped", reason=reason),
    )
    return Shadow(
        ModelRepository(pool, folder, single=single, models=names, max_bytes=settings.max_model_bytes),
        pool,
        lambda: models.version().label,
        lambda: batcher.n_waiting > 0,
        settings,
        metrics,
    )
