"""A server and its life: it listens, loads and warms the models, serves, drains and stops."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, Gauge

from rescorer.errors import BundleError, ConfigError, FormatError, ScoringError
from rescorer.models.bundle import newest_version, read_manifest
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from rescorer.protocol.v1.models_pb2_grpc import add_ModelServiceServicer_to_server
from rescorer.protocol.v1.rescorer_pb2_grpc import add_RescorerServiceServicer_to_server
from rescorer.runtime import count_cpus, keep_freed_memory, share_freed_memory
from rescorer.service.access import Authenticator, Certificates, Role
from rescorer.service.api.calls import CallInterceptor, Drain, Telemetry
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
from rescorer.service.api.shadow import Shadow
from rescorer.service.engine.admission import Quota
from rescorer.service.engine.census import count_decoded_bytes
from rescorer.service.engine.client_limits import CallMemory, SlowClientInterceptor, StreamSlots
from rescorer.service.engine.engine import Batcher, ScoringEngine
from rescorer.service.listener import (
    check_free,
    create_grpc_server,
    remove_port,
    to_ms,
    watch_listening,
    write_port,
)
from rescorer.service.logs import log_to_stderr, protect_stderr
from rescorer.service.metrics import READ_TIMEOUT_S, Metrics, MetricsEndpoint, resident_bytes
from rescorer.service.repository import ModelRepository, find_versions, select_versions
from rescorer.service.settings import ServiceSettings, unknown_variables
from rescorer.service.tracing import Tracing, create_tracing
from rescorer.service.workers.peers import MachineSettings
from rescorer.service.workers.pool import Worker, WorkerGroup, WorkerPool
from rescorer.sounds import load_pronouncer

if TYPE_CHECKING:
    from rescorer.service.workers.host import LoadScorer

log = structlog.get_logger()


def read_sounds(path: Path) -> None:
    """Read a dictionary of pronunciations, and learn rules for other words. Rankers use both from memory.

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


SERVICE = pb.DESCRIPTOR.services_by_name["RescorerService"].full_name
ROLES: Mapping[str, Role] = MappingProxyType(
    {
        SERVICE: "score",
        MODEL_SERVICE: "score",
        reflection.SERVICE_NAME: "score",
        ADMIN_SERVICE: "admin",
    }
)
"""The role that callers of each service need. Health is open to all, because probes have no identity."""

MAX_ARRIVING_BYTES = 256 * 1024 * 1024
"""Bound on the memory of requests that are still arriving, except those of streams."""
MIN_ARRIVING = 8
"""At least this many requests may arrive at the same time, however large they may be."""


def create_listener(
    settings: ServiceSettings,
    authenticator: Authenticator,
    telemetry: Telemetry,
    drain: Drain,
    memory: CallMemory,
    on_cut_off: Callable[[], object],
) -> grpc.aio.Server:
    """Create the gRPC server with its limits and interceptors; calls pass the interceptors in their order.

    Args:
        on_cut_off: called whenever a connection is cut off because it resets its calls endlessly.
    """
    response_bytes = {SERVICE: settings.max_response_bytes, MODEL_SERVICE: 0, ADMIN_SERVICE: 0}
    # gRPC refuses larger ones in a way that clients take for overload; what fits is refused with the reason.
    max_read_bytes = max(settings.max_message_bytes, MAX_MESSAGE_BYTES)
    interceptors = [
        SlowClientInterceptor(
            settings.max_wait_s,
            settings.max_idle_s,
            max(MIN_ARRIVING, MAX_ARRIVING_BYTES // max_read_bytes),
            [reflection.SERVICE_NAME],
        ),
        CallInterceptor(
            authenticator,
            ROLES,
            response_bytes,
            drain,
            telemetry,
            memory,
            partial(count_decoded_bytes, settings=settings),
        ),
    ]
    options = [
        ("grpc.max_receive_message_length", max_read_bytes),
        # Otherwise two servers would share a port without any error.
        ("grpc.so_reuseport", int(settings.front_ends > 1)),
        ("grpc.max_connection_age_ms", to_ms(settings.max_connection_age_s)),
        ("grpc.max_connection_age_grace_ms", to_ms(settings.max_connection_age_grace_s)),
        ("grpc.max_connection_idle_ms", to_ms(settings.max_idle_connection_s)),
        ("grpc.server_handshake_timeout_ms", to_ms(settings.max_handshake_s)),
    ]
    return create_grpc_server(interceptors, settings.max_calls_per_connection, options, on_cut_off)


NICENESS = 5
"""How much nicer workers that use all cores are than the server. With 0, the front end waits for the
processor: refusals took 0.2 s instead of 0.06 s, and throughput fell from 135 to 116 lists per second."""
SHADOW_NICENESS = 15
"""How much nicer the shadow's worker is than the server. It leaves the shadow a tenth of a contended core;
with less, the shadow would not load in time and would be restarted."""


def create_workers(settings: ServiceSettings, load: LoadScorer | None) -> list[Worker]:
    """Create worker processes, or one thread of this process if the settings ask for none.

    Args:
        load: replaces ``TrieScorer.load`` in the thread, for tests.
    """
    if settings.workers:
        machine, niceness = machine_of(settings), niceness_of(settings)
        return [WorkerGroup(machine, niceness) for _ in range(settings.workers)]
    # Only this branch needs KenLM and torch in the server's own process.
    from rescorer.pipeline import TrieScorer
    from rescorer.service.workers.host import ThreadWorker

    load = partial(
        load or TrieScorer.load, dtype=settings.dtype, context_cache_bytes=settings.context_cache_bytes
    )
    return [ThreadWorker(settings.device, threads_of(settings), load)]


def machine_of(settings: ServiceSettings) -> MachineSettings:
    return MachineSettings(
        settings.device,
        threads_of(settings),
        settings.dtype,
        settings.context_cache_bytes,
        settings.load_timeout_s,
    )


def niceness_of(settings: ServiceSettings) -> int:
    """How much nicer the workers are than the server: 0 if they leave one core per front end for calls."""
    busy = settings.workers * threads_of(settings) if settings.device == "cpu" else 0
    return NICENESS if busy > count_cpus() - settings.front_ends else 0


def threads_of(settings: ServiceSettings) -> int:
    """Threads of the networks in each worker: the setting, or the worker's share of the cores.

    One core per front end is left for accepting and answering calls. If there were more threads than cores,
    they would take turns, and wait for each other at every step.
    """
    return settings.threads or max(1, (count_cpus() - settings.front_ends) // max(1, settings.workers))


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
        dictionary=settings.dictionary,
        language=settings.language,
    )
    pool.verify = repository.verify_unchanged
    return repository


def create_shadow(
    settings: ServiceSettings, models: ModelRepository, batcher: Batcher, metrics: Metrics
) -> Shadow | None:
    """Create the shadow if the settings name one. Its models are not checked before they are loaded.

    Raises:
        BundleError: there is no bundle of that name.
    """
    if not settings.shadow:
        return None
    repository = None if settings.shadow[0] in "./" else settings.repository
    folder, single = repository or Path(settings.shadow), repository is None
    names = () if single else (settings.shadow,)
    if not all(select_versions(find_versions(folder, single).versions, names).values()):
        raise BundleError(f"{folder}: has no bundle {settings.shadow} to use as the shadow")
    pool = WorkerPool(
        [WorkerGroup(machine_of(settings), SHADOW_NICENESS)],
        lambda reason: log.error("the shadow is stopped", reason=reason),
        settings.worker_timeout_s,
        settings.load_timeout_s,
    )
    return Shadow(
        ModelRepository(pool, folder, single=single, models=names, max_bytes=settings.max_model_bytes),
        pool,
        lambda: models.version().label,
        lambda: batcher.n_waiting > 0,
        settings,
        metrics,
    )


EXIT_S = 4.0
"""Time that a stopping server may take after the grace time. The service managers in deploy/ allow 5 s."""


def end_process_within(seconds: float) -> None:
    """End this process with exit code 0 if it still runs after some time, even if its threads are busy.

    Python itself waits at exit for the threads of executors, and one of them may be busy with a long list.
    """
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()


@contextmanager
def answer_signals(
    stop_requested: asyncio.Event, reload: Callable[[], object], grace_s: float
) -> Iterator[None]:
    """Let SIGTERM and SIGINT request a stop and SIGHUP a reload while a block of a coroutine runs.

    Afterwards the former handlers apply again, so that SIGHUP does not kill a server that is about to end.

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


async def start_endpoint(settings: ServiceSettings, registry: CollectorRegistry) -> MetricsEndpoint | None:
    """Begin to serve metrics if the settings name a port for them."""
    if settings.metrics_port is None:
        return None
    endpoint = await MetricsEndpoint.start(settings.metrics_host, settings.metrics_port, registry)
    log.info("metrics", host=settings.metrics_host, port=endpoint.port)
    return endpoint


def explain_not_serving(
    *, is_started: bool, is_stopping: bool, n_models: int, n_workers_alive: int, failure: str = ""
) -> str:
    """Explain why a server cannot answer requests; empty: it can.

    Args:
        is_started: whether the first models have been loaded.
        n_models: number of models in service, including models that are missing on disk.
        n_workers_alive: number of workers that can score.
        failure: why scoring is no longer possible; empty: scoring is possible.
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
        self._failure = self._last_reason = ""
        self._updating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Report the current state from now on, until ``stop``."""
        self._is_started = True
        self.update()

        async def keep_updating() -> None:
            while True:
                await asyncio.sleep(UPDATE_INTERVAL_S)
                self.update()

        self._updating = asyncio.create_task(keep_updating())

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


HEALTH_NAMES = ("", SERVICE)
"""Names that health checks may ask for: the server as a whole, and the service."""

QUIET_S = 0.1
"""A stopping server waits until no call has arrived for this long, so that clients that watch its health can
move to another server. gRPC drops calls that arrive at the moment when a server stops; their clients would
see CANCELLED."""
SETTLE_S = 0.5
"""Longest wait of a stopping server until no more calls arrive, and then for calls that have arrived to
start."""

GC_THRESHOLDS = (10_000, 5, 3)
"""Thresholds of Python's garbage collector. The default of 700 new objects corresponds to three lists; with
it, a tenth of the time was spent on scanning waiting lists. A full collection runs every 150,000 objects,
because gRPC leaves 60 objects (20 KB) in reference cycles for each call that it aborts."""


SWITCH_INTERVAL_S = 0.0005
"""Longest time for which a thread that reads a large message may keep the event loop from running, each time.
Python's default of 5 ms is as long as a whole short call takes, which needs the interpreter lock often."""


class Server:
    """One server in the running event loop.

    Args:
        load: replaces ``TrieScorer.load``, so that tests can inject errors.
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
        self._loop = asyncio.get_running_loop()
        self.metrics = metrics = Metrics(self._refresh_gauges)
        if tracing is None and settings.trace_endpoint is not None:
            instance = f"{socket.gethostname()}:{os.getpid()}"
            tracing = create_tracing(settings.trace_endpoint, settings.trace_share, instance)
        self.tracing = tracing
        self.broken: asyncio.Future[str] = self._loop.create_future()
        """Future that gets the reason when scoring is no longer possible. Then the process should end."""
        self.pool = WorkerPool(
            create_workers(settings, load) if workers is None else workers,
            self._handle_failure,
            settings.worker_timeout_s,
            settings.load_timeout_s,
            metrics.worker_restarts.inc,
        )
        self.models = create_repository(settings, self.pool)
        self.engine = ScoringEngine(settings, self.pool, metrics)
        self.shadow = create_shadow(settings, self.models, self.engine.batcher, metrics)
        self._drain = Drain()
        self._service = RescorerService(
            settings,
            self.models,
            self.engine,
            self._drain,
            metrics,
            None if self.shadow is None else self.shadow.offer,
        )
        quota = Quota("bytes", settings.max_in_flight_bytes, settings.max_client_bytes)
        self.memory = CallMemory(quota, settings.max_unread_s, metrics.unread_answers.inc)
        self._endpoint: MetricsEndpoint | None = None
        self._labels_set: dict[Gauge, set[tuple[str, ...]]] = {}
        authenticator = Authenticator(settings.access)
        self.reloader = Reloader(
            settings, self.models, authenticator, read_again, metrics.record_reload, self.shadow
        )
        self._polling: asyncio.Task[None] | None = None
        watches = StreamSlots("watches", settings.max_watches, settings.max_client_watches)
        self.health = Health(HEALTH_NAMES, watches)
        self._serving_state = ServingState(self.health, metrics.ready, self.models, self.pool)
        telemetry = Telemetry(metrics, tracing)
        self.grpc_server = create_listener(
            settings, authenticator, telemetry, self._drain, self.memory, metrics.connections_cut_off.inc
        )

    async def start(self) -> int:
        """Begin to listen, and return the port. Requests are not scored before the models are loaded.

        Raises:
            BundleError: there is no bundle at the configured location.
            ConfigError: the address is taken, or the port file cannot be written.
        """
        settings = self.settings
        if settings.bundle is not None:
            read_manifest(newest_version(settings.bundle))  # report a wrong path at once
        remove_port(settings.port_file)  # left by a server that was killed
        self._add_services()
        self._serving_state.update()
        if settings.front_ends == 1:
            check_free(settings.host, settings.port)
        try:
            port = self._add_port()
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {settings.address}: {error}") from None
        self._endpoint = await start_endpoint(settings, self.metrics.registry)
        await self.grpc_server.start()
        self._watching = asyncio.create_task(watch_listening(self.grpc_server, self._handle_failure))
        log.info("listening", host=settings.host, port=port)
        write_port(settings.port_file, port)
        return port

    async def load(self) -> None:
        """Load and warm the models, then report SERVING.

        Raises:
            BundleError: a bundle cannot be used.
            ConfigError: the dictionary cannot be used.
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
        sys.setswitchinterval(SWITCH_INTERVAL_S)
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

    def _refresh_gauges(self) -> None:
        """Set all gauges; called from any thread but the event loop's, which owns the state."""
        asyncio.run_coroutine_threadsafe(self._set_gauges(), self._loop).result(READ_TIMEOUT_S)

    async def _set_gauges(self) -> None:
        metrics, workers = self.metrics, list(enumerate(self.pool.workers))
        metrics.queue_pieces.set(self.engine.batcher.n_waiting)
        metrics.in_flight_lists.set(self.engine.admission.lists.held)
        metrics.in_flight_tokens.set(self.engine.admission.tokens.held)
        metrics.streams.set(self._service.streams.held)
        metrics.workers_alive.set(self.pool.n_alive)
        metrics.in_flight_bytes.set(self.memory.quota.held)
        metrics.unread_bytes.set(self.memory.unread_bytes)
        metrics.models_refused.set(len(self.models.refused))
        metrics.versions_missing.set(len(self.models.missing))
        labelled: Mapping[Gauge, Mapping[tuple[str, ...], float]] = {
            metrics.model_bytes: {(version.label,): version.memory_bytes for version in self.models.versions},
            metrics.worker_bytes: {
                (str(i),): sum(map(resident_bytes, worker.pids)) for i, worker in workers if worker.pids
            },
            metrics.device_bytes: {
                (str(i), kind): size for i, worker in workers for kind, size in worker.device_bytes.items()
            },
        }
        for gauge, values in labelled.items():
            for labels in self._labels_set.get(gauge, set()) - values.keys():
                gauge.remove(*labels)
            for labels, value in values.items():
                gauge.labels(*labels).set(value)
            self._labels_set[gauge] = set(values)

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
        ScoringError: the device is broken, or workers keep dying.
        ConfigError: the address, the port file or the device is not available.
        BundleError: the models cannot be loaded.
    """
    begin_log(settings)
    share_freed_memory()
    if not settings.workers:
        keep_freed_memory()  # this process scores, like a worker

    async def serve() -> None:
        stop_requested = asyncio.Event()
        server = Server(settings, read_again=read_again)
        with answer_signals(stop_requested, server.reloader.request_reload, settings.grace_s):
            await server.start()
            await serve_until(stop_requested, server, server.load())

    asyncio.run(serve())


def begin_log(settings: ServiceSettings) -> None:
    """Log to a stderr that cannot block this process, beginning with variables that resemble settings."""
    protect_stderr()
    log_to_stderr(settings.log_format)
    for variable, message in unknown_variables(type(settings)):
        log.warning("unknown variable", variable=variable, message=message)


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
