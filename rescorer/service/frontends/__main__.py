"""Owns the process of one of several front ends: a server that shares its workers and is led.

    python -m rescorer.service.frontends SOCKET

It answers the supervisor's frames on the socket it was born with. Signals to stop and to reload are the
supervisor's business, and this process ends when the supervisor closes the socket or is gone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import generate_latest

from rescorer.errors import RescorerError
from rescorer.lm.malloc import share_freed_memory
from rescorer.service.config_sources import gather
from rescorer.service.main import serve_until
from rescorer.service.observability.logs import log_to_stderr
from rescorer.service.preflight import check_settings
from rescorer.service.server import Server
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings
from rescorer.service.workers.ipc import Frame, error_header, pack, read_frame
from rescorer.service.workers.worker import SharedWorker

Header = dict[str, Any]

log = structlog.get_logger()


def share(settings: ServiceSettings, port: int) -> ServiceSettings:
    """What the settings of a server mean for one of its fronts.

    Each has its part of what may be in flight, and room for one full message at least: a message above its
    part would wait until nothing else is in flight.
    """
    fronts = settings.front_ends
    full_message = -(-settings.max_message_bytes // BYTES_PER_TOKEN)
    update = {
        "port": port,
        "port_file": None,
        "metrics_port": None,
        "max_in_flight_lists": max(-(-settings.max_in_flight_lists // fronts), settings.max_lists),
        "max_in_flight_tokens": max(-(-settings.max_in_flight_tokens // fronts), full_message),
        "max_streams": -(-settings.max_streams // fronts),
    }
    return settings.model_copy(update=update)


class Front:
    """Does what the supervisor asks for; its public methods but ``answer`` are what it can ``do``."""

    def __init__(self) -> None:
        self._told_to_stop = asyncio.Event()
        self._events: asyncio.Queue[Header] = asyncio.Queue()
        self._last_told = False
        self._server: Server | None = None
        self._folder: Path | None = None

    async def answer(self, frame: Frame) -> Header:
        question: Callable[[Header], Awaitable[Header | None]] = getattr(self, frame.header["do"])
        try:
            header = await question(frame.header) or {}
        except Exception as fault:
            header = error_header(fault)
        return {**header, "id": frame.header["id"]}

    async def serve(self, header: Header) -> None:
        """Begins to serve; ``next`` tells what comes of it."""
        self._folder = Path(header["workers"][0]).parent
        self._serving = asyncio.create_task(self._serve(header))

    async def next(self, header: Header) -> Header:
        """What happens next: it listens, is to have the others reload, has ended, or ended by a fault.

        Asking means that the supervisor has done what the one before called for.
        """
        if self._last_told:
            self._events.task_done()
        self._last_told = True
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
        """It is there."""

    async def stop(self, header: Header) -> None:
        self._told_to_stop.set()

    def tidy(self) -> None:
        """Removes the folder of the workers' sockets where the supervisor was killed before it could."""
        if self._folder is not None and not self._serving.done():
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, header: Header) -> None:
        try:
            await self._served(header)
            event: Header = {"event": "ended"}
        except Exception as fault:
            if not isinstance(fault, RescorerError):
                log.critical("a front has failed", exc_info=fault)
            event = error_header(fault)
        self._events.put_nowait(event)

    async def _served(self, header: Header) -> None:
        settings = share(ServiceSettings(**header["settings"]), header["port"])
        log_to_stderr(settings.log_format, front_end=header["front"])

        def read_again() -> ServiceSettings:
            return share(check_settings(gather(ServiceSettings, *header["sources"])), header["port"])

        workers = [SharedWorker(Path(each)) for each in header["workers"]]
        self._server = server = Server(settings, read_again=read_again, workers=workers)
        server.reloader.others = self._others_reload

        async def load_and_listen() -> None:
            await server.load()
            await self._listen(server)

        if header["again"]:  # others serve: whoever comes here is not to wait
            await serve_until(self._told_to_stop, server, load_and_listen())
        else:
            await self._listen(server)
            await serve_until(self._told_to_stop, server, server.load())

    async def _listen(self, server: Server) -> None:
        await server.start()
        self._events.put_nowait({"event": "listening"})

    async def _others_reload(self) -> None:
        self._events.put_nowait({"event": "reload"})
        await self._events.join()


async def main(descriptor: int) -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    share_freed_memory()
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    front, answering = Front(), set()

    async def answer(frame: Frame) -> None:
        writer.write(pack(await front.answer(frame)))

    while True:
        try:
            task = asyncio.create_task(answer(await read_frame(reader)))
        except (asyncio.IncompleteReadError, OSError):  # all is done, or the supervisor is gone
            front.tidy()
            os._exit(0)
        answering.add(task)
        task.add_done_callback(answering.discard)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
