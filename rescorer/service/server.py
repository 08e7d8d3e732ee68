"""Owns the server's life: listen, load and warm the models, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from rescorer.bundle import newest_version, read_manifest
from rescorer.errors import ConfigError
from rescorer.lm.device import use_threads
from rescorer.pipeline import Rescorer
from rescorer.service.answers import Answers
from rescorer.service.drain import Drain
from rescorer.service.interceptor import FaultInterceptor
from rescorer.service.service import RescorerService
from rescorer.service.settings import ServiceSettings
from rescorer.service.v1 import rescorer_pb2 as pb
from rescorer.service.v1.rescorer_pb2_grpc import add_RescorerServiceServicer_to_server
from rescorer.service.worker import Worker

SERVICE = pb.DESCRIPTOR.services_by_name["RescorerService"].full_name
HEALTH_NAMES = ("", SERVICE)
"""What health can be asked about: the server as a whole, and the service."""

SETTLE_S = 0.5
"""For calls that have come but not begun, and for watchers of health to hear of the end."""

log = structlog.get_logger()


class Server:
    """One server in the running event loop.

    Args:
        load: makes the rescorer; tests put one with faults of its own here.
    """

    def __init__(
        self, settings: ServiceSettings, load: Callable[[Path, str], Rescorer] = Rescorer.load
    ) -> None:
        self._settings = settings
        self._load = load
        self._worker = Worker(settings.max_in_flight_lists)
        self._drain = Drain()
        self._service = RescorerService(settings, self._worker, self._drain)
        self._health = health_aio.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=[FaultInterceptor(SERVICE, self._drain)],
            options=[
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                # Without it two servers would share a port in silence.
                ("grpc.so_reuseport", 0),
            ],
        )

    async def start(self) -> int:
        """Listens, not yet serving; returns the port.

        Raises:
            BundleError: there is no bundle where the settings say.
            ConfigError: the address is taken, or the port file cannot be written.
        """
        settings = self._settings
        read_manifest(newest_version(settings.bundle))  # a mistake in its name is told at once
        if settings.port_file is not None:
            remove_port(settings.port_file)  # one that a killed server left is not to be believed
        add_RescorerServiceServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME),
            self._server,
        )
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        try:
            port = self._server.add_insecure_port(settings.address)
        except RuntimeError as fault:
            raise ConfigError(f"cannot listen on {settings.address}: {fault}") from None
        await self._server.start()
        log.info("listening", host=settings.host, port=port)
        if settings.port_file is not None:
            write_port(settings.port_file, port)
        return port

    async def load(self) -> None:
        """Loads and warms the models, then says SERVING. Raises BundleError where the bundle is unusable."""

        def loaded() -> tuple[Answers, str]:
            use_threads(self._settings.threads)
            rescorer = self._load(self._settings.bundle, self._settings.device)
            answers = Answers(rescorer, self._settings)
            answers.warm_up()
            return answers, rescorer.bundle.label

        (self._service.answers, label), timed = await self._worker.run(loaded)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        log.info("serving", model=label, load_ms=round(timed.compute_ms))

    async def stop(self) -> None:
        """Says NOT_SERVING, lets calls finish for the grace time, and ends."""
        log.info("stopping", grace_s=self._settings.grace_s)
        if self._settings.port_file is not None:
            with suppress(ConfigError):  # no reason not to stop
                remove_port(self._settings.port_file)
        await self._health.enter_graceful_shutdown()
        self._drain.begin()
        stopping = asyncio.create_task(self._server.stop(self._settings.grace_s))
        await asyncio.wait((stopping,), timeout=SETTLE_S)
        answered = asyncio.create_task(self._drain.answered())
        await asyncio.wait((stopping, answered), return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        await self._server.stop(None)  # what is open now only listens, as watchers of health do
        await stopping
        self._worker.close()
        log.info("stopped")

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:  # type: ignore[valid-type]  # an alias in the stubs
        for name in HEALTH_NAMES:
            await self._health.set(name, status)


def serve(settings: ServiceSettings) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
        ConfigError: the address, the port file or the device cannot be had.
        BundleError: the models cannot be loaded.
    """
    log_to_stderr()
    asyncio.run(_serve(settings))


async def _serve(settings: ServiceSettings) -> None:
    told_to_stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, told_to_stop.set)
    server = Server(settings)
    await server.start()
    stop, load = asyncio.create_task(told_to_stop.wait()), asyncio.create_task(server.load())
    try:
        await asyncio.wait((stop, load), return_when=asyncio.FIRST_COMPLETED)
        if load.done():
            load.result()
        await stop
    finally:
        for task in (stop, load):
            task.cancel()
        await server.stop()


def log_to_stderr() -> None:
    """One JSON object a line."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def write_port(path: Path, port: int) -> None:
    """Whole or not at all, for a script that waits for the file."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(f"{port}\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as fault:
        raise ConfigError(f"port_file {path} cannot be written: {fault.strerror}") from None


def remove_port(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as fault:
        raise ConfigError(f"port_file {path} cannot be removed: {fault.strerror}") from None
