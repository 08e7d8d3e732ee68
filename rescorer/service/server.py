"""Owns the server's life: listen, load and warm the models, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection

from rescorer.bundle import newest_version, read_manifest
from rescorer.errors import ConfigError
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from rescorer.protocol.v1.models_pb2_grpc import add_ModelServiceServicer_to_server
from rescorer.protocol.v1.rescorer_pb2_grpc import add_RescorerServiceServicer_to_server
from rescorer.service.api.auth import Access, AccessInterceptor
from rescorer.service.api.call_telemetry import Telemetry
from rescorer.service.api.drain import Drain
from rescorer.service.api.interceptors import FaultInterceptor
from rescorer.service.api.management import ADMIN_SERVICE, MODEL_SERVICE, AdminService, ModelService
from rescorer.service.api.reload import Reloader
from rescorer.service.api.rescorer_service import RescorerService
from rescorer.service.assembly import (
    create_admission,
    create_repository,
    create_shadow,
    create_tracing,
    create_workers,
)
from rescorer.service.engine.batcher import Batcher
from rescorer.service.engine.dispatch import Dispatcher
from rescorer.service.engine.offload import Offloader
from rescorer.service.engine.work_item import BatchScores, WorkItem
from rescorer.service.gauges import Gauges
from rescorer.service.models.repository import Changes
from rescorer.service.net.addresses import check_free
from rescorer.service.net.clients_file import Role
from rescorer.service.net.grpc_listener import listening_server, watch
from rescorer.service.net.port_file import remove_port, write_port
from rescorer.service.net.tls import Certificates
from rescorer.service.observability.endpoint import MetricsEndpoint
from rescorer.service.observability.metrics import Metrics
from rescorer.service.observability.tracing import Tracing
from rescorer.service.settings import ServiceSettings
from rescorer.service.workers.pool import WorkerPool
from rescorer.service.workers.worker import Worker

if TYPE_CHECKING:
    from rescorer.service.workers.model_host import LoadScorer

SERVICE = pb.DESCRIPTOR.services_by_name["RescorerService"].full_name
ROLES: Mapping[str, Role] = MappingProxyType(
    {
        SERVICE: "score",
        MODEL_SERVICE: "score",
        reflection.SERVICE_NAME: "score",
        ADMIN_SERVICE: "admin",
    }
)
"""What callers need; health is open, for it is asked by who has no login."""
GUARDED = (SERVICE, MODEL_SERVICE, ADMIN_SERVICE)
"""Those whose faults are ours; health and reflection are left alone."""
HEALTH_NAMES = ("", SERVICE)
"""What health can be asked about: the server as a whole, and the service."""

QUIET_S = 0.1
"""A server that is told to stop goes on until no call has come for so long, while watchers of health leave:
what comes in the moment that gRPC's server is stopped it drops, and the client sees CANCELLED."""
SETTLE_S = 0.5
"""At most for that, and then for calls that have come but not begun."""

NEVER_MS = 2**31 - 1
MIN_PING_INTERVAL_MS = 30_000
"""Clients ask every minute whether the connection lives; gRPC's 5 minutes would have them thrown out."""

GARBAGE = (10_000, 5, 3)
"""New objects before the garbage collector looks for cycles among them, and such looks before it looks among
older ones. Python's 700 are three lists: a tenth of the time went into looking through those that wait. Once
in 150,000 it looks among all: gRPC leaves 60 objects in cycles for a call that it aborts, 20 KB."""

MESSAGE_THREADS = 2
"""Two, so that a large message does not hold up all small ones; more would wait for Python's lock."""

log = structlog.get_logger()


class Server:
    """One server in the running event loop.

    Args:
        load: loads the models; tests put one with faults of its own here.
        read_again: reads the settings anew for a reload; None: they stay as they are.
        tracing: where spans go; None: as the settings say.
        workers: those of a server of several fronts; None: workers of its own, as the settings say.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        load: LoadScorer | None = None,
        read_again: Callable[[], ServiceSettings] | None = None,
        tracing: Tracing | None = None,
        workers: Sequence[Worker] | None = None,
    ) -> None:
        self._settings = settings
        self.metrics = Metrics(lambda: self._gauges.read())
        self._tracing = tracing or create_tracing(settings)
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why scoring is no longer possible, once that is so; the process had better end then."""
        self.pool = WorkerPool(
            create_workers(settings, load) if workers is None else workers,
            self._broke,
            settings.worker_timeout_s,
            self.metrics.worker_restarts.inc,
        )
        self.admission = create_admission(settings)
        self.models = create_repository(settings, self.pool)
        self._threads = ThreadPoolExecutor(MESSAGE_THREADS, "messages")
        offloader = Offloader(self._threads)
        self._batcher = Batcher(
            self.pool,
            offloader,
            settings.max_batch_tokens,
            settings.batch_wait_ms,
            self._scored,
            self.metrics.failed_batches.inc,
        )
        self.shadow = create_shadow(settings, self.models, self._batcher, self.metrics)
        self._drain = Drain()
        self._service = RescorerService(
            settings,
            self.models,
            self.admission,
            create_admission(settings),
            Dispatcher(self._batcher, settings.max_batch_tokens, self.metrics),
            offloader,
            self._drain,
            self.metrics,
            self.shadow,
        )
        self._gauges = Gauges(
            self.metrics, self.pool, self._batcher, self.admission, self._service.streams, self.models
        )
        self._endpoint: MetricsEndpoint | None = None
        telemetry = Telemetry(self.metrics, self._tracing)
        access = Access(settings.access)
        self.reloader = Reloader(
            settings,
            self.models,
            access,
            read_again,
            self._record_reload,
            self.shadow,
        )
        self._polling: asyncio.Task[None] | None = None
        self._health = health_aio.HealthServicer()
        self._server = listening_server(
            [
                AccessInterceptor(access, ROLES, telemetry),
                *(FaultInterceptor(each, self._drain, telemetry) for each in GUARDED),
            ],
            settings.connection_calls,
            [
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                # Else two servers would share a port in silence.
                ("grpc.so_reuseport", int(settings.front_ends > 1)),
                ("grpc.max_connection_age_ms", round(settings.max_connection_age_s * 1e3) or NEVER_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
            ],
        )

    async def start(self) -> int:
        """Listens, not yet serving unless the models are loaded; returns the port.

        Raises:
            BundleError: there is no bundle where the settings say.
            ConfigError: the address is taken, or the port file cannot be written.
        """
        settings = self._settings
        if settings.bundle is not None:
            read_manifest(newest_version(settings.bundle))  # a mistake in its name is told at once
        if settings.port_file is not None:
            remove_port(settings.port_file)  # one that a killed server left is not to be believed
        add_RescorerServiceServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        add_ModelServiceServicer_to_server(ModelService(self.models, self.shadow), self._server)
        if settings.admin:
            add_AdminServiceServicer_to_server(AdminService(self.reloader), self._server)
        health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        shown = [SERVICE, MODEL_SERVICE, *([ADMIN_SERVICE] if settings.admin else [])]
        reflection.enable_server_reflection((*shown, health, reflection.SERVICE_NAME), self._server)
        loaded = bool(self.models.versions)
        await self._set_health(HealthCheckResponse.SERVING if loaded else HealthCheckResponse.NOT_SERVING)
        if settings.front_ends == 1:
            check_free(settings.host, settings.port, "the service")
        try:
            port = self._add_port()
        except RuntimeError as fault:
            raise ConfigError(f"cannot listen on {settings.address}: {fault}") from None
        if settings.metrics_port is not None:
            self._endpoint = MetricsEndpoint(
                settings.metrics_host, settings.metrics_port, self.metrics.registry
            )
            log.info("metrics", host=settings.metrics_host, port=self._endpoint.port)
        await self._server.start()
        self._watching = asyncio.create_task(watch(self._server, self._broke))
        log.info("listening", host=settings.host, port=port)
        if settings.port_file is not None:
            write_port(settings.port_file, port)
        return port

    async def load(self) -> None:
        """Loads and warms the models, then says SERVING. Raises BundleError where a bundle is unusable."""
        began = time.perf_counter()
        await self.pool.start()
        self._batcher.start()
        await self.models.start()
        gc.collect()
        gc.freeze()  # what is alive now stays; looking through it would now and then hold up all for 0.1 s
        gc.set_threshold(*GARBAGE)
        await self._set_health(HealthCheckResponse.SERVING)
        if self.shadow is not None:
            self.shadow.start()
        if self._settings.poll_s:
            self._polling = asyncio.create_task(self.reloader.poll())
        labels = [each.label for each in self.models.versions]
        log.info("serving", models=labels, load_ms=round((time.perf_counter() - began) * 1e3))

    async def stop(self) -> None:
        """Says NOT_SERVING, lets calls finish for the grace time, and ends."""
        log.info("stopping", grace_s=self._settings.grace_s)
        if self._settings.port_file is not None:
            with suppress(ConfigError):  # no reason not to stop
                remove_port(self._settings.port_file)
        if self._polling is not None:
            self._polling.cancel()
        await self._health.enter_graceful_shutdown()
        self._drain.begin()
        if self.shadow is not None:
            await self.shadow.stop()  # nobody waits for it, and what is left to answer needs the time
        await self._drain.quiet(QUIET_S, SETTLE_S)
        stopping = asyncio.create_task(self._server.stop(self._settings.grace_s))
        await asyncio.wait((stopping,), timeout=SETTLE_S)
        answered = asyncio.create_task(self._drain.answered())
        await asyncio.wait((stopping, answered), return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        await self._server.stop(None)  # what is open now only listens, as watchers of health do
        await stopping
        await self._batcher.stop()
        await self.pool.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._endpoint is not None:
            await self._endpoint.stop()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.stop)
        log.info("stopped")

    @property
    def metrics_port(self) -> int:
        """Where metrics are read, 0 where they are not."""
        return self._endpoint.port if self._endpoint else 0

    def _add_port(self) -> int:
        settings = self._settings
        if settings.tls_certificate is None or settings.tls_key is None:
            return self._server.add_insecure_port(settings.address)
        certificates = Certificates(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        return self._server.add_secure_port(settings.address, certificates.credentials())

    def _scored(self, works: Sequence[WorkItem], batch: BatchScores) -> None:
        self.admission.pace.did(sum(work.cost for work in works))
        self.metrics.record_batch(
            batch.ranker.bundle.label,
            items=len(works),
            tokens=sum(len(words) + 1 for item in works for words in item.words),
            trie_edges=batch.trie.n_edges,
            context_words=batch.context_words.needed,
            recalled_context_words=batch.context_words.recalled,
            timings=batch.timings,
        )

    def _record_reload(self, changes: Changes) -> None:
        self.metrics.record_reload(refused=bool(changes.refused))

    def _broke(self, reason: str) -> None:
        """Tells health, and whoever runs the server."""
        log.critical("scoring is no longer possible", reason=reason)
        if not self.broken.done():
            self.broken.set_result(reason)
            self._telling = asyncio.create_task(self._set_health(HealthCheckResponse.NOT_SERVING))

    async def _set_health(self, status: HealthCheckResponse.ServingStatus) -> None:  # type: ignore[valid-type]  # an alias in the stubs
        self.metrics.ready.set(status == HealthCheckResponse.SERVING)
        for name in HEALTH_NAMES:
            await self._health.set(name, status)
