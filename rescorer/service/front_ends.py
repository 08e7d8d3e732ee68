"""Several front ends on one port: server processes that a supervisor starts and replaces.

The front ends share the workers. The supervisor restarts front ends and workers that die; a front end that
ends with an error ends the whole server. The supervisor itself uses neither gRPC nor models. It runs a front
end as

    python -m rescorer.service.front_ends SOCKET

A front end answers the supervisor's requests on the inherited socket. It ignores the signals to stop and to
reload, which the supervisor handles, and exits when the supervisor closes the socket or is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from rescorer.errors import ConfigError, RescorerError, ScoringError
from rescorer.frames import Arrays, Frame, error_header
from rescorer.runtime import share_freed_memory
from rescorer.service.listener import keep_port, remove_port, write_port
from rescorer.service.logs import log_to_stderr, use_parents_stderr
from rescorer.service.metrics import DROPPED_LINES, READ_TIMEOUT_S, DroppedLinesCollector
from rescorer.service.server import (
    Server,
    answer_signals,
    begin_log,
    machine_of,
    niceness_of,
    serve_until,
    start_endpoint,
)
from rescorer.service.settings import (
    BYTES_PER_TOKEN,
    ServiceSettings,
    check_settings,
    gather,
)
from rescorer.service.workers.peers import Child, WorkerLost, answer_requests, spawn_worker
from rescorer.service.workers.pool import STABLE_AFTER_S, SharedWorker, wait_to_restart
from rescorer.signals import ignore_group_signals

log = structlog.get_logger()

FRONT_END = "front_end"
"""Label that distinguishes the samples of the front ends."""
SERVER_WIDE = (
    "rescorer_device_memory_bytes",
    "rescorer_model_memory_bytes",
    "rescorer_model_versions_missing",
    "rescorer_models_refused",
    "rescorer_worker_resident_memory_bytes",
    "rescorer_workers_alive",
)
"""Metrics of the whole server. All front ends come to report the same value for each, so only the largest of
their values is reported, once."""


class FrontEndMetrics(Collector):
    """Metrics of all front ends and the supervisor; to be created in the supervisor's event loop.

    Args:
        read: reads the metrics of the front ends that respond, as text by number of the front end.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Mapping[int, str]]]) -> None:
        self._read = read
        self._loop = asyncio.get_running_loop()
        own = self._own = CollectorRegistry()
        self._up = Gauge("rescorer_front_ends_up", "Front ends that respond.", registry=own)
        self.front_end_restarts = Counter(
            "rescorer_front_end_restarts_total", "Front ends that died or were terminated.", registry=own
        )
        self.worker_restarts = Counter(
            "rescorer_worker_restarts_total", "Workers that died or were terminated.", registry=own
        )
        own.register(DroppedLinesCollector())
        ProcessCollector(registry=own)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise registering this collector would read the front ends' metrics

    def collect(self) -> Iterable[Metric]:
        """Read and merge all metrics; called from any thread but the event loop's."""
        texts = asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(READ_TIMEOUT_S)
        self._up.set(len(texts))
        return merge_metrics(texts, self._own.collect())


def merge_metrics(texts: Mapping[int, str], own: Iterable[Metric] = ()) -> list[Metric]:
    """Merge the metrics of several front ends and their supervisor into those of one server.

    Args:
        texts: metrics of each front end in Prometheus' text format, by number of the front end. If the
            supervisor reports a metric of the same name that begins with ``rescorer_``, only its value
            counts, because the workers belong to the supervisor.
        own: the supervisor's metrics.
    """
    families = {family.name: family for family in own}
    of_supervisor = {name for name in families if name.startswith("rescorer_")} - {DROPPED_LINES}
    largest: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for number, text in texts.items():
        for family in text_string_to_metric_families(text):
            if family.name in of_supervisor:
                continue
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for name, labels, value, *_ in family.samples:
                if family.name in SERVER_WIDE:
                    key = name, tuple(labels.items())
                    largest[key] = max(value, largest.get(key, value))
                else:
                    merged.add_sample(name, {**labels, FRONT_END: str(number)}, value)
    for (name, label_items), value in largest.items():
        families[name].add_sample(name, dict(label_items), value)
    return list(families.values())


PING_INTERVAL_S = 1.0
"""Interval between checks that a front end responds. Without them, the kernel would continue to give
connections to one that hangs."""
START_TIMEOUT_S = 60.0
"""A front end that does not listen yet may take this long to respond, however short ``worker_timeout_s`` is:
its imports take seconds on a busy machine."""
METRICS_TIMEOUT_S = 2.0
"""Longest wait for the metrics of a front end. Metrics that come later are left out, so that the reader gets
those of the other front ends."""
STOP_S = 3.0
"""Time that a front end may take to stop after the grace time. The service managers in deploy/ allow 5 s."""


class LostAfterWork(WorkerLost):
    """A process was lost after it had done some work. So the count of consecutive losses starts again."""


class Supervisor:
    """Runs the front ends and workers of one server, in the running event loop.

    Args:
        sources: the settings file and the options, from which settings are read again, as for ``gather``.
    """

    def __init__(self, settings: ServiceSettings, sources: tuple[str | None, Mapping[str, Any]]) -> None:
        self._settings, self._sources = settings, sources
        self._stack = ExitStack()
        self._workers: dict[str, socket.socket] = {}  # listening sockets, by their paths
        self._front_ends: dict[int, Child] = {}
        self._listening: set[int] = set()
        self._stopping = False
        self._reloading: set[asyncio.Task[None]] = set()
        self._metrics = FrontEndMetrics(self._read_metrics)

    async def run(self, stop_requested: asyncio.Event) -> None:
        """Serve until a stop is requested.

        Raises:
            RescorerError: a front end ends with this error.
            ScoringError: a process cannot be started, or dies too often.
        """
        settings = self._settings
        remove_port(settings.port_file)  # left by a server that was killed
        with self._stack:
            reserved = keep_port(settings.host, settings.port)
            self._port = int(self._stack.enter_context(reserved).getsockname()[1])
            self._create_sockets()
            endpoint = await start_endpoint(settings, self._metrics.registry)
            workers = [
                asyncio.create_task(self._keep_worker_running(listening))
                for listening in self._workers.values()
            ]
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
        """Start a reload in the background; for signal handlers, which cannot wait."""
        task = asyncio.create_task(self._reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    def _create_sockets(self) -> None:
        """Create a listening socket for each worker. The sockets stay open when a worker is replaced."""
        try:
            temporary = tempfile.TemporaryDirectory(prefix="rescorer-", ignore_cleanup_errors=True)
            folder = Path(self._stack.enter_context(temporary))
            for number in range(self._settings.workers):
                listening = self._stack.enter_context(socket.socket(socket.AF_UNIX))
                path = str(folder / str(number))
                listening.bind(path)
                listening.listen(socket.SOMAXCONN)
                self._workers[path] = listening
        except OSError as error:
            raise ConfigError(
                f"cannot create sockets for the workers in a temporary folder: {error}; check TMPDIR"
            ) from None

    async def _keep_worker_running(self, listening: socket.socket) -> None:
        async def run_once(is_restart: bool) -> None:
            if is_restart:
                self._metrics.worker_restarts.inc()
            worker = await spawn_worker(machine_of(self._settings), niceness_of(self._settings), listening)
            try:
                await worker.wait_closed()
                raise (LostAfterWork if worker.has_worked else WorkerLost)("a worker has died")
            finally:
                await worker.kill()

        await self._run_with_restarts("worker", run_once)

    async def _keep_front_end_running(self, number: int) -> None:
        async def run_once(is_restart: bool) -> None:
            if is_restart:
                self._metrics.front_end_restarts.inc()
            self._front_ends[number] = child = await Child.spawn("rescorer.service.front_ends")
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
            ScoringError: the process cannot be started, or dies too often.
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
            await wait_to_restart(what, losses)

    async def _run_front_end(self, number: int, front_end: Child, is_restart: bool) -> None:
        """Have a front end serve, and handle its events until it has ended.

        Raises:
            WorkerLost: the front end died.
            RescorerError: the front end ended with this error.
        """
        request = {
            "do": "serve",
            "front": number,
            "again": is_restart,
            "settings": self._read_current_settings().model_dump(mode="json"),
            "sources": self._sources,
            "port": self._port,
            "workers": list(self._workers),
            "terminal": sys.stderr.isatty(),
        }
        await front_end.ask(request)
        while (event := (await front_end.ask({"do": "next"})).header["event"]) != "ended":
            if event == "listening":
                self._listening.add(number)
                if len(self._listening) == self._settings.front_ends and not self._stopping:
                    self._announce()
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

    def _announce(self) -> None:
        """Report that all front ends listen; this happens again after each restart of a front end."""
        settings = self._settings
        log.info("listening", host=settings.host, port=self._port, front_ends=len(self._front_ends))
        write_port(settings.port_file, self._port)

    async def _reload(self, except_for: int | None = None) -> None:
        """Have all front ends reload, except one with the number ``except_for``, and wait for them."""
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
        """Let the front ends finish within the grace time, except those that do not listen yet."""
        log.info("stopping", grace_s=self._settings.grace_s)
        self._stopping = True
        with suppress(ConfigError):  # stop all the same
            remove_port(self._settings.port_file)
        requests = (
            front_end.ask({"do": "stop"}) if number in self._listening else front_end.kill()
            for number, front_end in self._front_ends.items()
        )
        replies = asyncio.gather(*requests, return_exceptions=True)  # a front end that hangs never replies
        await asyncio.wait(front_ends, timeout=self._settings.grace_s + STOP_S)
        replies.cancel()
        await asyncio.gather(replies, return_exceptions=True)  # otherwise asyncio logs the cancellation


def supervise(settings: ServiceSettings, config: Path | None, options: Mapping[str, Any]) -> None:
    """Serve with several front ends until a signal to stop; like ``rescorer.service.server.serve``.

    Args:
        config, options: the settings file and the options, from which settings are read again, as for
            ``gather``.
    """
    begin_log(settings)

    async def supervise() -> None:
        stop_requested = asyncio.Event()
        supervisor = Supervisor(settings, (None if config is None else str(config), dict(options)))
        with answer_signals(stop_requested, supervisor.request_reload, settings.grace_s):
            await supervisor.run(stop_requested)

    asyncio.run(supervise())


Header = dict[str, Any]


def derive_front_end_settings(settings: ServiceSettings, port: int) -> ServiceSettings:
    """Derive the settings of one front end from those of the server.

    Each front end gets an equal part of the in-flight limits, but enough for one full message: a message
    above the limit would wait until nothing else is in flight.
    """
    front_ends = settings.front_ends
    full_message = -(-settings.max_message_bytes // BYTES_PER_TOKEN)
    update = {
        "port": port,
        "port_file": None,
        "metrics_port": None,
        "max_in_flight_lists": max(-(-settings.max_in_flight_lists // front_ends), settings.max_lists),
        "max_in_flight_tokens": max(-(-settings.max_in_flight_tokens // front_ends), full_message),
        "max_in_flight_bytes": max(
            -(-settings.max_in_flight_bytes // front_ends),
            settings.max_message_bytes + settings.max_response_bytes,
        ),
        "max_streams": -(-settings.max_streams // front_ends),
        "max_watches": -(-settings.max_watches // front_ends),
    }
    return settings.model_copy(update=update)


class FrontEnd:
    """Answers the supervisor's requests.

    The operations that a request can name are ``serve``, ``next``, ``reload``, ``metrics``, ``ping`` and
    ``stop``.
    """

    def __init__(self) -> None:
        self._stop_requested = asyncio.Event()
        self._events: asyncio.Queue[Header] = asyncio.Queue()
        self._event_delivered = False
        self._server: Server | None = None
        self._folder: Path | None = None

    async def perform(self, frame: Frame) -> tuple[Header, Arrays]:
        """Carry out a request, and return the header and the arrays of the reply."""
        operation: Callable[[Header], Awaitable[Header | None]] = getattr(self, frame.header["do"])
        return await operation(frame.header) or {}, {}

    async def serve(self, header: Header) -> None:
        """Start to serve; ``next`` reports the events that follow."""
        self._folder = Path(header["workers"][0]).parent
        self._serving = asyncio.create_task(self._serve(header))

    async def next(self, header: Header) -> Header:
        """Wait for the next event and return it: "listening", "reload", "ended" or an error.

        By asking for the next event, the supervisor confirms that it has handled the previous one.
        """
        if self._event_delivered:
            self._events.task_done()
        self._event_delivered = True
        return await self._events.get()

    async def reload(self, header: Header) -> None:
        if self._server is not None:
            await self._server.reloader.reload()

    async def metrics(self, header: Header) -> Header:
        if self._server is None:
            return {"text": ""}
        text = await asyncio.to_thread(generate_latest, self._server.metrics.registry)
        return {"text": text.decode()}

    async def ping(self, header: Header) -> None:
        """Do nothing; the reply shows that the process responds."""

    async def stop(self, header: Header) -> None:
        self._stop_requested.set()

    def remove_sockets(self) -> None:
        """Remove the folder of the workers' sockets if the supervisor was killed before it could do so."""
        if self._folder is not None and not self._serving.done():
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, header: Header) -> None:
        try:
            await self._run_server(header)
            event: Header = {"event": "ended"}
        except Exception as error:
            if not isinstance(error, RescorerError):
                log.critical("a front end has failed", exc_info=error)
            event = error_header(error)
        self._events.put_nowait(event)

    async def _run_server(self, header: Header) -> None:
        settings = derive_front_end_settings(ServiceSettings(**header["settings"]), header["port"])
        use_parents_stderr(is_terminal=header["terminal"])
        log_to_stderr(settings.log_format, front_end=header["front"])

        def reread_settings() -> ServiceSettings:
            settings = check_settings(gather(ServiceSettings, *header["sources"]))
            return derive_front_end_settings(settings, header["port"])

        workers = [SharedWorker(Path(path)) for path in header["workers"]]
        self._server = server = Server(settings, read_again=reread_settings, workers=workers)
        server.reloader.others = self._reload_others

        async def listen() -> None:
            await server.start()
            self._events.put_nowait({"event": "listening"})

        async def load_and_listen() -> None:
            await server.load()
            await listen()

        if header["again"]:  # others serve already: take no calls until the models are loaded
            await serve_until(self._stop_requested, server, load_and_listen())
        else:
            await listen()
            await serve_until(self._stop_requested, server, server.load())

    async def _reload_others(self) -> None:
        self._events.put_nowait({"event": "reload"})
        await self._events.join()


async def main(descriptor: int) -> None:
    ignore_group_signals()
    share_freed_memory()
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    front_end = FrontEnd()
    await answer_requests(reader, writer, front_end.perform)
    front_end.remove_sockets()  # the server has stopped, or the supervisor is gone
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
