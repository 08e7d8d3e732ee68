"""The life of a server: listen, load and warm the models, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import Gauge

from rescorer.errors import ConfigError, ScoringError
from rescorer.models.bundle import newest_version, read_manifest
from rescorer.protocol.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from rescorer.protocol.v1.models_pb2_grpc import add_ModelServiceServicer_to_server
from rescorer.protocol.v1.rescorer_pb2_grpc import add_RescorerServiceServicer_to_server
from rescorer.runtime import keep_freed_memory, share_freed_memory
from rescorer.service.api.calls import Authenticator, Drain, Telemetry
from rescorer.service.api.management import (
    ADMIN_SERVICE,
    MODEL_SERVICE,
    NOT_SERVING,
    SERVING,
    AdminService,
    Health,
    ModelService,
    Reloader,
)
from rescorer.service.api.rescoring import RescorerService
from rescorer.service.assembly import (
    SERVICE,
    Gauges,
    create_call_memory,
    create_listener,
    create_pool,
    create_repository,
    create_shadow,
    create_tracing,
    create_watches,
    create_workers,
    read_sounds,
)
from rescorer.service.engine.engine import ScoringEngine
from rescorer.service.logs import Tracing, log_to_stderr, protect_stderr
from rescorer.service.metrics import Metrics, MetricsEndpoint
from rescorer.service.models import Changes, ModelRepository
from rescorer.service.net import Certificates, check_free, remove_port, watch_listening, write_port
from rescorer.service.settings import ServiceSettings, unknown_variables
from rescorer.service.workers.pool import WorkerPool
from rescorer.service.workers.worker import Worker

if TYPE_CHECKING:
    from rescorer.service.workers.host import LoadScorer


EXIT_S = 4.0
"""Time that a stopping server may take beyond the grace time. The service managers in deploy/ allow 5 s."""


def end_process_within(seconds: float) -> None:
    """End this process with exit code 0 if it still runs after this time, even if its threads are busy.

    Python itself waits at its exit for the threads of executors, one of which may score or convert a long
    list.
    """
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()


@contextmanager
def answer_signals(
    stop_requested: asyncio.Event, reload: Callable[[], object], grace_s: float
) -> Iterator[None]:
    """Let SIGTERM and SIGINT request a stop and SIGHUP a reload while a block of a coroutine runs.

    Afterwards the former handlers apply again, so that SIGHUP does not kill a server that has nearly ended.

    Args:
        grace_s: time for calls in progress; the process ends at most ``EXIT_S`` later.
    """

    def request_stop() -> None:
        end_process_within(grace_s + EXIT_S)
        stop_requested.set()

    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: request_stop, signal.SIGINT: request_stop, signal.SIGHUP: reload}
    former = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
            signal.signal(number, former[number])


UPDATE_INTERVAL_S = 0.5

log = structlog.get_logger()


def explain_not_serving(
    *, is_started: bool, is_stopping: bool, n_models: int, n_workers_alive: int, failure: str = ""
) -> str:
    """Explain why a server cannot answer requests; empty: it can.

    Args:
        is_started: whether the first models have been loaded.
        n_models: number of models in service, including those that are missing on disk.
        n_workers_alive: number of workers that can score.
        failure: why scoring is no longer possible; empty: it is.
    """
    if failure:
        return failure
    if is_stopping:
        return "the server is stopping"
    if not is_started:
        return "the models are being loaded"
    if not n_models:
        return "there is no model to serve"
    return "" if n_workers_alive else "no worker is able to score"


class ServingState:
    """Report to health checks and in a metric whether the server can answer requests.

    Args:
        ready: set to 1 while health reports SERVING, otherwise to 0.
    """

    def __init__(self, health: Health, ready: Gauge, models: ModelRepository, pool: WorkerPool) -> None:
        self._health, self._ready = health, ready
        self._models, self._pool = models, pool
        self._is_started = self._is_stopping = False
        self._failure = ""
        self._last_reason = ""
        self._updating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Report the current state from now on, until ``stop``."""
        self._is_started = True
        self.update()
        self._updating = asyncio.create_task(self._keep_updating())

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._is_stopping = True
        if self._updating is not None:
            self._updating.cancel()
        self.update()
        self._health.begin_shutdown()

    def fail(self, reason: str) -> None:
        """Report that scoring is no longer possible."""
        self._failure = reason
        self.update()

    def update(self) -> None:
        reason = explain_not_serving(
            is_started=self._is_started,
            is_stopping=self._is_stopping,
            n_models=self._models.n_serving,
            n_workers_alive=self._pool.n_alive,
            failure=self._failure,
        )
        self._ready.set(not reason)
        self._health.missing_models = tuple(self._models.missing)
        self._health.set(NOT_SERVING if reason else SERVING)
        if self._is_started and reason != self._last_reason:
            write = log.warning if reason and not self._is_stopping else log.info
            write("health has changed", serving=not reason, reason=reason)
        self._last_reason = reason

    async def _keep_updating(self) -> None:
        while True:
            await asyncio.sleep(UPDATE_INTERVAL_S)
            self.update()


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


def serve(settings: ServiceSettings, read_again: Callable[[], ServiceSettings] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads settings and models.

    Args:
        read_again: see ``Server``.

    Raises:
        ScoringError: If the device is broken, or workers keep dying.
        ConfigError: If the address, the port file or the device is not available.
        BundleError: If the models cannot be loaded.
    """
    protect_stderr()
    log_to_stderr(settings.log_format)
    for variable, message in unknown_variables(type(settings)):
        log.warning("unknown variable", variable=variable, message=message)
    share_freed_memory()
    if not settings.workers:
        keep_freed_memory()  # this process scores, like a worker
    asyncio.run(_serve(settings, read_again))


async def _serve(settings: ServiceSettings, read_again: Callable[[], ServiceSettings] | None) -> None:
    stop_requested = asyncio.Event()
    server = Server(settings, read_again=read_again)
    with answer_signals(stop_requested, server.reloader.request_reload, settings.grace_s):
        await server.start()
        await serve_until(stop_requested, server, server.load())


async def serve_until(
    stop_requested: asyncio.Event, server: Server, begin: Coroutine[Any, Any, None]
) -> None:
    """Start the server with ``begin`` and serve until a stop is requested; raises like ``serve``."""
    stop, begun = asyncio.create_task(stop_requested.wait()), asyncio.create_task(begin)
    try:
        await asyncio.wait((stop, begun, server.broken), return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            begun.result()
        await asyncio.wait((stop, server.broken), return_when=asyncio.FIRST_COMPLETED)
        if server.broken.done():
            raise ScoringError(server.broken.result())
    finally:
        for task in (stop, begun):
            task.cancel()
        await server.stop()
