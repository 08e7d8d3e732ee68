"""The life of a server: listen, load and warm the models, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rescorer.bundle import newest_version, read_manifest
from rescorer.errors import ConfigError
from rescorer.protocol.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from rescorer.protocol.v1.models_pb2_grpc import add_ModelServiceServicer_to_server
from rescorer.protocol.v1.rescorer_pb2_grpc import add_RescorerServiceServicer_to_server
from rescorer.service.api.auth import Authenticator
from rescorer.service.api.call_telemetry import Telemetry
from rescorer.service.api.drain import Drain
from rescorer.service.api.health import Health
from rescorer.service.api.management import ADMIN_SERVICE, MODEL_SERVICE, AdminService, ModelService
from rescorer.service.api.reload import Reloader
from rescorer.service.api.rescorer_service import RescorerService
from rescorer.service.assembly import (
    create_call_memory,
    create_pool,
    create_repository,
    create_shadow,
    create_tracing,
    create_watches,
    create_workers,
)
from rescorer.service.engine.scoring_engine import ScoringEngine
from rescorer.service.gauges import Gauges
from rescorer.service.interception import SERVICE, create_listener
from rescorer.service.models.versions import Changes
from rescorer.service.net.addresses import check_free
from rescorer.service.net.grpc_listener import watch_listening
from rescorer.service.net.port_file import remove_port, write_port
from rescorer.service.net.tls import Certificates
from rescorer.service.observability.endpoint import MetricsEndpoint
from rescorer.service.observability.metrics import Metrics
from rescorer.service.observability.tracing import Tracing
from rescorer.service.serving_state import ServingState
from rescorer.service.settings import ServiceSettings
from rescorer.service.sounds import read_sounds
from rescorer.service.workers.worker import Worker

if TYPE_CHECKING:
    from rescorer.service.workers.model_host import LoadScorer

HEALTH_NAMES = ("", SERVICE)
"""Names that health checks may ask for: the server as a whole, and the service."""

QUIET_S = 0.1
"""A stopping server waits until no call has arrived for this long, so that clients that watch its health can
move to another server: gRPC drops calls that arrive at the moment when its server is stopped, and their
clients see CANCELLED."""
SETTLE_S = 0.5
"""Longest wait until no more calls arrive, and then longest wait for calls that have arrived but not
started."""

GC_THRESHOLDS = (10_000, 5, 3)
"""Thresholds of Python's garbage collector. The default of 700 new objects corresponds to three lists, and a
tenth of the time was spent on scanning waiting lists. A full collection runs every 150,000 objects: gRPC
leaves 60 objects (20 KB) in reference cycles for each call that it aborts."""

log = structlog.get_logger()


class Server:
    """One server in the running event loop.

    Args:
        load: replaces ``TrieScorer.load``; tests inject errors with it.
        read_again: reads the settings for a reload; None: reloads keep the settings.
        tracing: where spans go; None: according to the settings.
        workers: the workers that several front ends share; None: workers according to the settings.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        load: LoadScorer | None = None,
        read_again: Callable[[], ServiceSettings] | None = None,
        tracing: Tracing | None = None,
        workers: Sequence[Worker] | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(lambda: self._gauges.read())
        self.tracing = tracing or create_tracing(settings)
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when scoring is no longer possible; the process should then end."""
        workers = create_workers(settings, load) if workers is None else workers
        restarts = self.metrics.worker_restarts
        self.pool = create_pool(settings, workers, self._handle_failure, restarts.inc)
        self.models = create_repository(settings, self.pool)
        self.engine = ScoringEngine(settings, self.pool, self.metrics)
        self.shadow = create_shadow(settings, self.models, self.engine.batcher, self.metrics)
        self._drain = Drain()
        self._service = RescorerService(
            settings, self.models, self.engine, self._drain, self.metrics, self.shadow
        )
        self.memory = create_call_memory(settings, self.metrics)
        self._gauges = Gauges(
            self.metrics, self.pool, self.engine, self._service.streams, self.memory, self.models
        )
        self._endpoint: MetricsEndpoint | None = None
        telemetry = Telemetry(self.metrics, self.tracing)
        authenticator = Authenticator(settings.access)
        self.reloader = Reloader(
            settings, self.models, authenticator, read_again, self._record_reload, self.shadow
        )
        self._polling: asyncio.Task[None] | None = None
        self.health = Health(HEALTH_NAMES, create_watches(settings))
        self._serving_state = ServingState(self.health, self.metrics.ready, self.models, self.pool)
        self.grpc_server = create_listener(settings, authenticator, telemetry, self._drain, self.memory)

    async def start(self) -> int:
        """Listen, without serving yet unless the models are loaded; return the port.

        Raises:
            BundleError: If there is no bundle at the configured location.
            ConfigError: If the address is taken, or the port file cannot be written.
        """
        settings = self.settings
        if settings.bundle is not None:
            read_manifest(newest_version(settings.bundle))  # report a wrong path at once
        if settings.port_file is not None:
            remove_port(settings.port_file)  # left by a server that was killed
        self._add_services()
        self._serving_state.update()
        if settings.front_ends == 1:
            check_free(settings.host, settings.port, "the service")
        try:
            port = self._add_port()
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {settings.address}: {error}") from None
        if settings.metrics_port is not None:
            self._endpoint = await MetricsEndpoint.start(
                settings.metrics_host, settings.metrics_port, self.metrics.registry
            )
            log.info("metrics", host=settings.metrics_host, port=self._endpoint.port)
        await self.grpc_server.start()
        self._watching = asyncio.create_task(watch_listening(self.grpc_server, self._handle_failure))
        log.info("listening", host=settings.host, port=port)
        if settings.port_file is not None:
            write_port(settings.port_file, port)
        return port

    async def load(self) -> None:
        """Load and warm the models, then report SERVING.

        Raises:
            BundleError: If a bundle cannot be used.
            ConfigError: If the dictionary cannot be used.
        """
        began = time.perf_counter()
        if self.settings.dictionary is not None:
            await asyncio.to_thread(read_sounds, self.settings.dictionary)
        await self.pool.start()
        self.engine.batcher.start()
        await self.models.start()
        self.pool.open()
        gc.collect()
        gc.freeze()  # these objects stay; scanning them would stop everything for 0.1 s now and then
        gc.set_threshold(*GC_THRESHOLDS)
        self._serving_state.start()
        if self.shadow is not None:
            self.shadow.start()
        if self.settings.poll_s:
            self._polling = asyncio.create_task(self.reloader.poll())
        labels = [version.label for version in self.models.versions]
        log.info("serving", models=labels, load_ms=round((time.perf_counter() - began) * 1e3))

    async def stop(self) -> None:
        """Report NOT_SERVING, let calls finish within the grace time, and stop."""
        log.info("stopping", grace_s=self.settings.grace_s)
        if self.settings.port_file is not None:
            with suppress(ConfigError):  # stop all the same
                remove_port(self.settings.port_file)
        if self._polling is not None:
            self._polling.cancel()
        self._serving_state.stop()
        self._drain.begin()
        if self.shadow is not None:
            await self.shadow.stop()  # first: no caller waits for it
        await self._drain.wait_until_quiet(QUIET_S, SETTLE_S)
        stopping = asyncio.create_task(self.grpc_server.stop(self.settings.grace_s))
        await asyncio.wait((stopping,), timeout=SETTLE_S)
        answered = asyncio.create_task(self._drain.wait_until_answered())
        await asyncio.wait((stopping, answered), return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        await self.grpc_server.stop(None)  # only watchers of health are still open
        await stopping
        await self.engine.stop()
        await self.pool.stop()
        if self._endpoint is not None:
            await self._endpoint.stop()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.stop)
        log.info("stopped")

    @property
    def metrics_port(self) -> int:
        """Port of the metrics endpoint; 0: there is none."""
        return self._endpoint.port if self._endpoint else 0

    def _add_services(self) -> None:
        add_RescorerServiceServicer_to_server(self._service, self.grpc_server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc_server)
        add_ModelServiceServicer_to_server(ModelService(self.models, self.shadow), self.grpc_server)
        health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        shown = [SERVICE, MODEL_SERVICE, health, reflection.SERVICE_NAME]
        if self.settings.admin:
            add_AdminServiceServicer_to_server(AdminService(self.reloader), self.grpc_server)
            shown.append(ADMIN_SERVICE)
        reflection.enable_server_reflection(shown, self.grpc_server)

    def _add_port(self) -> int:
        settings = self.settings
        if settings.tls_certificate is None or settings.tls_key is None:
            return self.grpc_server.add_insecure_port(settings.address)
        certificates = Certificates(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        return self.grpc_server.add_secure_port(settings.address, certificates.credentials())

    def _record_reload(self, changes: Changes) -> None:
        self.metrics.record_reload(refused=bool(changes.refused))

    def _handle_failure(self, reason: str) -> None:
        """Report that scoring is no longer possible, to health checks and to the owner of the server."""
        log.critical("scoring is no longer possible", reason=reason)
        if not self.broken.done():
            self.broken.set_result(reason)
            self._serving_state.fail(reason)
