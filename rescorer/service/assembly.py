"""Create the parts of a server from its settings, and the gRPC server that every call enters."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import grpc
import structlog
from grpc_reflection.v1alpha import reflection
from prometheus_client import Gauge

from rescorer.errors import BundleError, ConfigError, FormatError
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.runtime import count_cpus
from rescorer.service.api.calls import Authenticator, AuthInterceptor, Drain, ErrorInterceptor, Telemetry
from rescorer.service.api.management import ADMIN_SERVICE, MODEL_SERVICE
from rescorer.service.api.rescoring import Shadow
from rescorer.service.engine.admission import Quota
from rescorer.service.engine.client_limits import CallMemory, RefusalPacer, SlowClientInterceptor, StreamSlots
from rescorer.service.engine.engine import Batcher, ScoringEngine
from rescorer.service.logs import Tracing
from rescorer.service.logs import create_tracing as create_otlp_tracing
from rescorer.service.metrics import READ_TIMEOUT_S, Metrics, resident_bytes
from rescorer.service.models import ModelRepository, find_versions, select_versions
from rescorer.service.net import Role, connection_options, create_grpc_server
from rescorer.service.settings import ServiceSettings
from rescorer.service.workers.pool import WorkerPool
from rescorer.service.workers.worker import MachineSettings, ProcessWorker, Worker, WorkerGroup
from rescorer.sounds import load_pronouncer

if TYPE_CHECKING:
    from rescorer.service.workers.host import LoadScorer


log = structlog.get_logger()


def read_sounds(path: Path) -> None:
    """Read a dictionary, and learn the rules for words that it lacks; rankers then find it in memory.

    Raises:
        ConfigError: the file is not a dictionary.
    """
    began = time.perf_counter()
    try:
        load_pronouncer(path).learn_letters()
    except FormatError as error:
        raise ConfigError(f"dictionary {error}") from None
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    load_ms = round((time.perf_counter() - began) * 1e3)
    log.info("dictionary read", file=str(path), sha256=digest, load_ms=load_ms)


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


SERVICE = pb.DESCRIPTOR.services_by_name["RescorerService"].full_name
ROLES: Mapping[str, Role] = MappingProxyType(
    {
        SERVICE: "score",
        MODEL_SERVICE: "score",
        reflection.SERVICE_NAME: "score",
        ADMIN_SERVICE: "admin",
    }
)
"""The role that callers of each service need. The health service is open to all, because probes have no
identity."""
OWN_SERVICES = (SERVICE, MODEL_SERVICE, ADMIN_SERVICE)
"""Services whose errors we turn into statuses; health and reflection create their own statuses."""

MAX_ARRIVING_BYTES = 256 * 1024 * 1024
"""Bound on the memory of requests that are still arriving, those of streams aside."""
MIN_ARRIVING = 8
"""Number of requests that may arrive at the same time, however large they may be."""


def create_listener(
    settings: ServiceSettings,
    authenticator: Authenticator,
    telemetry: Telemetry,
    drain: Drain,
    memory: CallMemory,
) -> grpc.aio.Server:
    """Create the gRPC server with its interceptors and limits, without services and ports."""
    return create_grpc_server(
        create_interceptors(settings, authenticator, telemetry, drain, memory),
        settings.max_calls_per_connection,
        [
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            # Otherwise two servers would share a port without any error.
            ("grpc.so_reuseport", int(settings.front_ends > 1)),
            *connection_options(
                settings.max_connection_age_s,
                settings.max_connection_age_grace_s,
                settings.max_idle_connection_s,
                settings.max_handshake_s,
            ),
        ],
    )


def create_interceptors(
    settings: ServiceSettings,
    authenticator: Authenticator,
    telemetry: Telemetry,
    drain: Drain,
    memory: CallMemory,
) -> list[grpc.aio.ServerInterceptor]:
    """Create the interceptors of a server, in the order in which calls pass them."""
    pacer = RefusalPacer()
    return [
        SlowClientInterceptor(
            settings.max_wait_s,
            settings.max_idle_s,
            max(MIN_ARRIVING, MAX_ARRIVING_BYTES // settings.max_message_bytes),
            [reflection.SERVICE_NAME],
        ),
        AuthInterceptor(authenticator, ROLES, telemetry),
        *(
            ErrorInterceptor(
                service,
                drain,
                telemetry,
                memory,
                pacer,
                settings.max_response_bytes if service == SERVICE else 0,
            )
            for service in OWN_SERVICES
        ),
    ]


NICENESS = 5
"""Niceness of workers that use all cores. At niceness 0 the front end waits for the processor: refusals took
0.2 s instead of 0.06 s, and throughput fell from 135 to 116 lists per second."""
SHADOW_NICENESS = 15
"""Niceness of the shadow's worker, which leaves it a tenth of a contended core; with less the shadow would
not load in time and would be restarted."""


def create_workers(settings: ServiceSettings, load: LoadScorer | None) -> list[Worker]:
    """Create worker processes, or one thread of this process if the settings ask for none.

    Args:
        load: replaces ``TrieScorer.load`` in the thread, for tests.
    """
    if settings.workers:
        create = partial(create_process_worker, settings, niceness_of(settings))
        return [WorkerGroup(create) for _ in range(settings.workers)]
    # Only this branch needs KenLM and torch in the server's own process.
    from rescorer.pipeline import TrieScorer
    from rescorer.service.workers.host import ThreadWorker

    load = partial(
        load or TrieScorer.load, dtype=settings.dtype, context_cache_bytes=settings.context_cache_bytes
    )
    return [ThreadWorker(settings.device, threads_of(settings), load)]


def create_process_worker(
    settings: ServiceSettings, niceness: int, listening: socket.socket | None = None
) -> ProcessWorker:
    machine = MachineSettings(
        settings.device,
        threads_of(settings),
        settings.dtype,
        settings.context_cache_bytes,
        settings.load_timeout_s,
    )
    return ProcessWorker(machine, niceness, listening)


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
