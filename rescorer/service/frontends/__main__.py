"""Run one of several front ends: a server that shares its workers with others and has a supervisor.

    python -m rescorer.service.frontends SOCKET

The process answers the supervisor's requests on the inherited socket. It ignores the signals to stop and to
reload, which the supervisor handles; it exits when the supervisor closes the socket or is gone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import generate_latest

from rescorer.errors import RescorerError
from rescorer.lm.malloc import share_freed_memory
from rescorer.runtime.signals import ignore_group_signals
from rescorer.service.config_sources import gather
from rescorer.service.main import serve_until
from rescorer.service.observability.logs import log_to_stderr
from rescorer.service.observability.stderr import use_parents_stderr
from rescorer.service.preflight import check_settings
from rescorer.service.server import Server
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings
from rescorer.service.workers.ipc import Frame, error_header, pack, read_frame
from rescorer.service.workers.worker import SharedWorker

Header = dict[str, Any]

log = structlog.get_logger()


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

    async def answer(self, frame: Frame) -> Header:
        operation: Callable[[Header], Awaitable[Header | None]] = getattr(self, frame.header["do"])
        try:
            header = await operation(frame.header) or {}
        except Exception as error:
            header = error_header(error)
        return {**header, "id": frame.header["id"]}

    async def serve(self, header: Header) -> None:
        """Start to serve; ``next`` reports the events that follow."""
        self._folder = Path(header["workers"][0]).parent
        self._serving = asyncio.create_task(self._serve(header))

    async def next(self, header: Header) -> Header:
        """Wait for the next event and return it: "listening", "reload", "ended" or an error.

        Each call confirms that the supervisor has handled the previous event.
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

        async def load_and_listen() -> None:
            await server.load()
            await self._listen(server)

        if header["again"]:  # others serve already: take no calls until the models are loaded
            await serve_until(self._stop_requested, server, load_and_listen())
        else:
            await self._listen(server)
            await serve_until(self._stop_requested, server, server.load())

    async def _listen(self, server: Server) -> None:
        await server.start()
        self._events.put_nowait({"event": "listening"})

    async def _reload_others(self) -> None:
        self._events.put_nowait({"event": "reload"})
        await self._events.join()


async def main(descriptor: int) -> None:
    ignore_group_signals()
    share_freed_memory()
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    front_end, answering = FrontEnd(), set()

    async def answer(frame: Frame) -> None:
        writer.write(pack(await front_end.answer(frame)))

    while True:
        try:
            task = asyncio.create_task(answer(await read_frame(reader)))
        except (asyncio.IncompleteReadError, OSError):  # the server has stopped, or the supervisor is gone
            front_end.remove_sockets()
            os._exit(0)
        answering.add(task)
        task.add_done_callback(answering.discard)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
