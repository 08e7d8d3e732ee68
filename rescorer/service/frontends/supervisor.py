"""Owns a server of several front ends: their one port, the workers that are theirs together, and their lives.

It starts each process, and again where one dies; whoever ends with a reason ends them all. It speaks no gRPC
and knows no models.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
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
from rescorer.service.preflight import check_settings
from rescorer.service.settings import ServiceSettings
from rescorer.service.workers.ipc import Child, WorkerLost
from rescorer.service.workers.pool import MAX_CONSECUTIVE_LOSSES, RESTART_DELAY_S
from rescorer.service.workers.worker import ProcessWorker

LONG_LIFE_S = 10.0
"""A process that has lived so long and dies is not one more in a row."""
PING_EVERY_S = 1.0
"""Each front is asked whether it is there; one that hangs would go on being given connections."""
READ_LIMIT_S = 2.0
"""A front that takes longer to tell its metrics is left out: who reads those of all waits for them."""
STOP_S = 3.0
"""What a front may take to stop beyond the grace time; systemd and others in deploy/ wait for five."""

log = structlog.get_logger()


class LostAfterWork(WorkerLost):
    """A process is gone that had done some work: it can, and this death is not one more in a row."""


class Supervisor:
    """One server of several fronts, in the running event loop.

    Args:
        sources: of the settings, to be read again: the file, and the options; as of ``gather``.
    """

    def __init__(self, settings: ServiceSettings, sources: tuple[str | None, Mapping[str, Any]]) -> None:
        self._settings, self._sources = settings, sources
        self._stack = ExitStack()
        self._scorers: list[ProcessWorker] = []
        self._paths: list[str] = []
        self._fronts: dict[int, Child] = {}
        self._listening: set[int] = set()
        self._stopping = False
        self._reloading: set[asyncio.Task[None]] = set()
        self._metrics = FrontEndMetrics(self._scorers, self._read)

    async def run(self, stop_requested: asyncio.Event) -> None:
        """Serves until told to stop. Raises what ends a front, or ScoringError where processes die on."""
        settings, endpoint = self._settings, None
        if settings.port_file is not None:
            remove_port(settings.port_file)  # one that a killed server left is not to be believed
        with self._stack:
            self._port = self._kept_port()
            self._make_scorers()
            if settings.metrics_port is not None:
                endpoint = MetricsEndpoint(
                    settings.metrics_host, settings.metrics_port, self._metrics.registry
                )
                log.info("metrics", host=settings.metrics_host, port=endpoint.port)
            workers = [asyncio.create_task(self._keep_scorer(each)) for each in self._scorers]
            fronts = [asyncio.create_task(self._keep_front(each)) for each in range(settings.front_ends)]
            stop = asyncio.create_task(stop_requested.wait())
            try:
                done, _ = await asyncio.wait((stop, *workers, *fronts), return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
            finally:
                await self._stop(fronts)
                for each in (stop, *workers, *fronts):
                    each.cancel()
                await asyncio.gather(stop, *workers, *fronts, return_exceptions=True)
                if endpoint is not None:
                    await endpoint.stop()
                log.info("stopped")

    def request_reload(self) -> None:
        """By and by; for a signal, which cannot wait."""
        task = asyncio.create_task(self._reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    def _kept_port(self) -> int:
        kept = self._stack.enter_context(keep_port(self._settings.host, self._settings.port, "the service"))
        return int(kept.getsockname()[1])

    def _make_scorers(self) -> None:
        try:
            made = tempfile.TemporaryDirectory(prefix="rescorer-", ignore_cleanup_errors=True)
            folder = Path(self._stack.enter_context(made))
            for number in range(self._settings.workers):
                listening = self._stack.enter_context(socket.socket(socket.AF_UNIX))
                listening.bind(str(folder / str(number)))
                listening.listen(socket.SOMAXCONN)
                self._paths.append(str(folder / str(number)))
                self._scorers.append(
                    create_process_worker(self._settings, niceness_of(self._settings), listening)
                )
        except OSError as fault:
            raise ConfigError(f"no folder for the sockets of workers (TMPDIR): {fault}") from None

    async def _keep_scorer(self, worker: ProcessWorker) -> None:
        async def life(again: bool) -> None:
            if again:
                self._metrics.worker_restarts.inc()
            await worker.start()
            raise (LostAfterWork if await worker.wait_until_exit() else WorkerLost)("a worker has died")

        try:
            await self._lives("worker", life)
        finally:
            await worker.stop()

    async def _keep_front(self, number: int) -> None:
        async def life(again: bool) -> None:
            if again:
                self._metrics.front_end_restarts.inc()
            self._fronts[number] = child = await Child.spawn("rescorer.service.frontends")
            watching = asyncio.create_task(self._watch(number, child))
            try:
                if not self._stopping:
                    await self._lead(number, child, again)
            finally:
                watching.cancel()
                self._listening.discard(number)
                await child.kill()

        await self._lives("front", life)

    async def _lives(self, what: str, life: Callable[[bool], Awaitable[None]]) -> None:
        """One life of a process after the other, until one ends well. Raises where too many end early."""
        deaths = 0
        for number in itertools.count():
            began = time.monotonic()
            try:
                return await life(number > 0)
            except WorkerLost as death:
                if self._stopping:
                    return None
                early = not isinstance(death, LostAfterWork) and time.monotonic() - began < LONG_LIFE_S
            except OSError as fault:
                raise ScoringError(f"a {what} cannot be started: {fault}") from None
            deaths = deaths + 1 if early else 1
            log.warning(f"a {what} has died", deaths_in_a_row=deaths)
            if deaths > MAX_CONSECUTIVE_LOSSES:
                raise ScoringError(f"a {what} died {deaths} times in a row")
            if deaths > 1:
                await asyncio.sleep(RESTART_DELAY_S * 2 ** (deaths - 2))

    async def _lead(self, number: int, front: Child, again: bool) -> None:
        """Has a front serve, until it has ended. Raises WorkerLost, or its reason."""
        question = {
            "do": "serve",
            "front": number,
            "again": again,
            "settings": self._current().model_dump(mode="json"),
            "sources": self._sources,
            "port": self._port,
            "workers": self._paths,
        }
        await front.ask(question)
        while (event := (await front.ask({"do": "next"})).header["event"]) != "ended":
            if event == "listening":
                self._listens(number)
            if event == "reload" or again:
                await self._reload(but=number)  # what one has read anew, the others have to, too
                again = False

    async def _watch(self, number: int, front: Child) -> None:
        """Ends a front that hangs, for another to begin."""
        limit_s = self._settings.worker_timeout_s
        with suppress(WorkerLost):
            while True:
                await asyncio.sleep(PING_EVERY_S)
                try:
                    await asyncio.wait_for(front.ask({"do": "ping"}), limit_s)
                except TimeoutError:
                    log.error("a front is given up", front_end=number, after_s=limit_s)
                    return await front.kill()

    def _current(self) -> ServiceSettings:
        """The settings that fronts began with, and the choice of models that they have been told since."""
        with suppress(RescorerError):
            models = check_settings(gather(ServiceSettings, *self._sources)).models
            return self._settings.model_copy(update={"models": models})
        return self._settings

    def _listens(self, number: int) -> None:
        self._listening.add(number)
        if len(self._listening) == self._settings.front_ends and not self._stopping:
            log.info("listening", host=self._settings.host, port=self._port, fronts=len(self._fronts))
            if self._settings.port_file is not None:
                write_port(self._settings.port_file, self._port)

    async def _reload(self, but: int | None = None) -> None:
        """Has the fronts reload, and waits for them."""
        fronts = [child for number, child in self._fronts.items() if number != but]
        await asyncio.gather(*(each.ask({"do": "reload"}) for each in fronts), return_exceptions=True)

    async def _read(self) -> dict[int, str]:
        """The metrics of those fronts that tell them."""

        async def read(number: int) -> tuple[int, str]:
            try:
                asked = self._fronts[number].ask({"do": "metrics"})
                return number, (await asyncio.wait_for(asked, READ_LIMIT_S)).header["text"]
            except (RescorerError, TimeoutError):
                return number, ""

        told = await asyncio.gather(*(read(number) for number in self._fronts))
        return {number: text for number, text in told if text}

    async def _stop(self, fronts: list[asyncio.Task[None]]) -> None:
        """Lets the fronts finish."""
        log.info("stopping", grace_s=self._settings.grace_s)
        self._stopping = True
        if self._settings.port_file is not None:
            with suppress(ConfigError):  # no reason not to stop
                remove_port(self._settings.port_file)
        questions = (each.ask({"do": "stop"}) for each in self._fronts.values())
        asked = asyncio.gather(*questions, return_exceptions=True)  # one that hangs does not answer
        await asyncio.wait(fronts, timeout=self._settings.grace_s + STOP_S)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)  # else its end would be an error in the log


def supervise(settings: ServiceSettings, config: Path | None, options: Mapping[str, Any]) -> None:
    """As ``serving.serve``, with several fronts.

    Args:
        config, options: where the settings came from, to be read again; as of ``gather``.
    """
    log_to_stderr(settings.log_format)
    for variable, message in unknown_variables(type(settings)):
        log.warning("unknown variable", variable=variable, message=message)
    asyncio.run(_supervise(settings, (None if config is None else str(config), dict(options))))


async def _supervise(settings: ServiceSettings, sources: tuple[str | None, Mapping[str, Any]]) -> None:
    stop_requested, loop = asyncio.Event(), asyncio.get_running_loop()
    supervisor = Supervisor(settings, sources)
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop_requested.set)
    loop.add_signal_handler(signal.SIGHUP, supervisor.request_reload)
    await supervisor.run(stop_requested)
