"""Supervise a server of several front ends, which share one port and the workers.

The supervisor starts each process and restarts those that die. A process that ends with an error ends the
server. The supervisor itself uses neither gRPC nor models.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import structlog

from rescorer.errors import ConfigError, RescorerError, ScoringError
from rescorer.service.assembly import create_process_worker, niceness_of
from rescorer.service.config_sources import gather, unknown_variables
from rescorer.service.frontends.metrics import FrontEndMetrics
from rescorer.service.net.addresses import keep_port
from rescorer.service.net.port_file import remove_port, write_port
from rescorer.service.observability.endpoint import MetricsEndpoint
from rescorer.service.observability.logs import log_to_stderr
from rescorer.service.observability.stderr import protect_stderr
from rescorer.service.preflight import check_settings
from rescorer.service.process_exit import answer_signals
from rescorer.service.settings import ServiceSettings
from rescorer.service.workers.ipc import Child, WorkerLost
from rescorer.service.workers.pool import MAX_CONSECUTIVE_LOSSES, RESTART_DELAY_S, STABLE_AFTER_S
from rescorer.service.workers.worker import ProcessWorker

PING_INTERVAL_S = 1.0
"""Interval between checks that a front end responds. A front end that hangs would still be given
connections."""
START_TIMEOUT_S = 60.0
"""Longest time for which a front end that does not listen yet may not respond: its imports take seconds on a
busy machine, however short ``worker_timeout_s`` is."""
METRICS_TIMEOUT_S = 2.0
"""Longest wait for the metrics of a front end. After that they are left out, so that the reader gets the
metrics of the others."""
STOP_S = 3.0
"""Time that a front end may take to stop beyond the grace time. The service managers in deploy/ allow 5 s."""

log = structlog.get_logger()


class LostAfterWork(WorkerLost):
    """A process that had done some work was lost; the count of consecutive losses starts again."""


class Supervisor:
    """A server of several front ends, in the running event loop.

    Args:
        sources: the settings file and the options, from which settings are read again; see ``gather``.
    """

    def __init__(self, settings: ServiceSettings, sources: tuple[str | None, Mapping[str, Any]]) -> None:
        self._settings, self._sources = settings, sources
        self._stack = ExitStack()
        self._workers: list[ProcessWorker] = []
        self._paths: list[str] = []
        self._front_ends: dict[int, Child] = {}
        self._listening: set[int] = set()
        self._stopping = False
        self._reloading: set[asyncio.Task[None]] = set()
        self._metrics = FrontEndMetrics(self._read_metrics)

    async def run(self, stop_requested: asyncio.Event) -> None:
        """Serve until a stop is requested.

        Raises:
            RescorerError: If a front end ends with this error.
            ScoringError: If a process cannot be started, or dies too often.
        """
        settings, endpoint = self._settings, None
        if settings.port_file is not None:
            remove_port(settings.port_file)  # left by a server that was killed
        with self._stack:
            self._port = self._reserve_port()
            self._create_workers()
            if settings.metrics_port is not None:
                endpoint = await MetricsEndpoint.start(
                    settings.metrics_host, settings.metrics_port, self._metrics.registry
                )
                log.info("metrics", host=settings.metrics_host, port=endpoint.port)
            workers = [asyncio.create_task(self._keep_worker_running(worker)) for worker in self._workers]
            front_ends = [
                asyncio.create_task(self._keep_front_end_running(number))
                for number in range(settings.front_ends)
            ]
            tasks = (asyncio.create_task(stop_requested.wait()), *workers, *front_ends)
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await self._stop(front_ends)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if endpoint is not None:
                    await endpoint.stop()
                log.info("stopped")

    def request_reload(self) -> None:
        """Start a reload without waiting for it, as a signal handler must."""
        task = asyncio.create_task(self._reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    def _reserve_port(self) -> int:
        reserved = keep_port(self._settings.host, self._settings.port, "the service")
        return int(self._stack.enter_context(reserved).getsockname()[1])

    def _create_workers(self) -> None:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="rescorer-", ignore_cleanup_errors=True)
            folder = Path(self._stack.enter_context(temporary))
            for number in range(self._settings.workers):
                listening = self._stack.enter_context(socket.socket(socket.AF_UNIX))
                path = str(folder / str(number))
                listening.bind(path)
                listening.listen(socket.SOMAXCONN)
                self._paths.append(path)
                self._workers.append(
                    create_process_worker(self._settings, niceness_of(self._settings), listening)
                )
        except OSError as error:
            raise ConfigError(
                f"cannot create sockets for the workers in a temporary folder: {error}; check TMPDIR"
            ) from None

    async def _keep_worker_running(self, worker: ProcessWorker) -> None:
        async def run_once(is_restart: bool) -> None:
            if is_restart:
                self._metrics.worker_restarts.inc()
            await worker.start()
            raise (LostAfterWork if await worker.wait_until_exit() else WorkerLost)("a worker has died")

        try:
            await self._run_with_restarts("worker", run_once)
        finally:
            await worker.stop()

    async def _keep_front_end_running(self, number: int) -> None:
        async def run_once(is_restart: bool) -> None:
            if is_restart:
                self._metrics.front_end_restarts.inc()
            self._front_ends[number] = child = await Child.spawn("rescorer.service.frontends")
            watching = asyncio.create_task(self._watch(number, child))
            try:
                if not self._stopping:
                    await self._run_front_end(number, child, is_restart)
            finally:
                watching.cancel()
                self._listening.discard(number)
                await child.kill()

        await self._run_with_restarts("front end", run_once)

    async def _run_with_restarts(self, what: str, run_once: Callable[[bool], Awaitable[None]]) -> None:
        """Run a process, restarting it when it dies, until it ends without an error.

        Args:
            run_once: runs the process until its end; the argument says whether this is a restart.

        Raises:
            ScoringError: If the process cannot be started, or dies too often.
        """
        losses = 0
        for attempt in itertools.count():
            began = time.monotonic()
            try:
                return await run_once(attempt > 0)
            except WorkerLost as error:
                if self._stopping:
                    return None
                early = not isinstance(error, LostAfterWork) and time.monotonic() - began < STABLE_AFTER_S
            except OSError as error:
                raise ScoringError(f"cannot start a {what}: {error}") from None
            losses = losses + 1 if early else 1
            log.warning(f"a {what} has died", consecutive_losses=losses)
            if losses > MAX_CONSECUTIVE_LOSSES:
                raise ScoringError(f"a {what} died {losses} times in a row")
            if losses > 1:
                await asyncio.sleep(RESTART_DELAY_S * 2 ** (losses - 2))

    async def _run_front_end(self, number: int, front_end: Child, is_restart: bool) -> None:
        """Have a front end serve, and handle its events until it has ended.

        Raises:
            WorkerLost: If the front end died.
            RescorerError: If the front end ended with this error.
        """
        request = {
            "do": "serve",
            "front": number,
            "again": is_restart,
            "settings": self._read_current_settings().model_dump(mode="json"),
            "sources": self._sources,
            "port": self._port,
            "workers": self._paths,
            "terminal": sys.stderr.isatty(),
        }
        await front_end.ask(request)
        while (event := (await front_end.ask({"do": "next"})).header["event"]) != "ended":
            if event == "listening":
                self._record_listening(number)
            if event == "reload" or is_restart:
                # A restarted front end has read the newest settings and models; the others must follow.
                await self._reload(except_for=number)
                is_restart = False

    async def _watch(self, number: int, front_end: Child) -> None:
        """Kill a front end that does not respond, so that it is restarted."""
        with suppress(WorkerLost):
            while True:
                await asyncio.sleep(PING_INTERVAL_S)
                limit_s = self._settings.worker_timeout_s
                if number not in self._listening:
                    limit_s = max(limit_s, START_TIMEOUT_S)
                try:
                    await asyncio.wait_for(front_end.ask({"do": "ping"}), limit_s)
                except TimeoutError:
                    log.error("killing a front end that does not respond", front_end=number, after_s=limit_s)
                    return await front_end.kill()

    def _read_current_settings(self) -> ServiceSettings:
        """Return the initial settings with the current choice of models, which reloads may change."""
        with suppress(RescorerError):
            models = check_settings(gather(ServiceSettings, *self._sources)).models
            return self._settings.model_copy(update={"models": models})
        return self._settings

    def _record_listening(self, number: int) -> None:
        self._listening.add(number)
        if len(self._listening) == self._settings.front_ends and not self._stopping:
            log.info("listening", host=self._settings.host, port=self._port, front_ends=len(self._front_ends))
            if self._settings.port_file is not None:
                write_port(self._settings.port_file, self._port)

    async def _reload(self, except_for: int | None = None) -> None:
        """Have the front ends reload, all or all but one, and wait for them."""
        others = [child for number, child in self._front_ends.items() if number != except_for]
        requests = (front_end.ask({"do": "reload"}) for front_end in others)
        await asyncio.gather(*requests, return_exceptions=True)

    async def _read_metrics(self) -> dict[int, str]:
        """Read the metrics of the front ends that respond in time, as text by number."""

        async def read(number: int) -> tuple[int, str]:
            try:
                request = self._front_ends[number].ask({"do": "metrics"})
                return number, (await asyncio.wait_for(request, METRICS_TIMEOUT_S)).header["text"]
            except (RescorerError, TimeoutError):
                return number, ""

        results = await asyncio.gather(*(read(number) for number in self._front_ends))
        return {number: text for number, text in results if text}

    async def _stop(self, front_ends: list[asyncio.Task[None]]) -> None:
        """Let the front ends finish within the grace time."""
        log.info("stopping", grace_s=self._settings.grace_s)
        self._stopping = True
        if self._settings.port_file is not None:
            with suppress(ConfigError):  # stop all the same
                remove_port(self._settings.port_file)
        requests = (front_end.ask({"do": "stop"}) for front_end in self._front_ends.values())
        replies = asyncio.gather(*requests, return_exceptions=True)  # a front end that hangs never replies
        await asyncio.wait(front_ends, timeout=self._settings.grace_s + STOP_S)
        replies.cancel()
        await asyncio.gather(replies, return_exceptions=True)  # otherwise asyncio logs the cancellation


def supervise(settings: ServiceSettings, config: Path | None, options: Mapping[str, Any]) -> None:
    """Serve with several front ends until a signal to stop; like ``rescorer.service.main.serve``.

    Args:
        config, options: the settings file and the options, from which settings are read again; see
            ``gather``.
    """
    protect_stderr()
    log_to_stderr(settings.log_format)
    for variable, message in unknown_variables(type(settings)):
        log.warning("unknown variable", variable=variable, message=message)
    asyncio.run(_supervise(settings, (None if config is None else str(config), dict(options))))


async def _supervise(settings: ServiceSettings, sources: tuple[str | None, Mapping[str, Any]]) -> None:
    stop_requested = asyncio.Event()
    supervisor = Supervisor(settings, sources)
    with answer_signals(stop_requested, supervisor.request_reload, settings.grace_s):
        await supervisor.run(stop_requested)
