"""Owns the process of a server with one front end: it serves until it is told to stop, or can no longer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from rescorer.errors import ScoringError
from rescorer.lm.malloc import keep_freed_memory, share_freed_memory
from rescorer.service.environment import strange_variables
from rescorer.service.observability.logs import log_to_stderr
from rescorer.service.server import Server
from rescorer.service.settings import ServiceSettings

log = structlog.get_logger()


def serve(settings: ServiceSettings, read_again: Callable[[], ServiceSettings] | None = None) -> None:
    """Serves until SIGTERM or SIGINT; SIGHUP makes it reload.

    Args:
        read_again: as of ``Server``.

    Raises:
        ScoringError: the device broke, or the scorers die one after the other.
        ConfigError: the address, the port file or the device cannot be had.
        BundleError: the models cannot be loaded.
    """
    log_to_stderr(settings.log_format)
    for variable, message in strange_variables(type(settings)):
        log.warning("unknown variable", variable=variable, message=message)
    share_freed_memory()
    if not settings.scorers:
        keep_freed_memory()  # as scorers do
    asyncio.run(_serve(settings, read_again))


async def _serve(settings: ServiceSettings, read_again: Callable[[], ServiceSettings] | None) -> None:
    told_to_stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, told_to_stop.set)
    server = Server(settings, read_again=read_again)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reloader.told)
    await server.start()
    await serve_until(told_to_stop, server, server.load())


async def serve_until(told_to_stop: asyncio.Event, server: Server, begin: Coroutine[Any, Any, None]) -> None:
    """Serves, once ``begin`` is done, until told to stop. Raises as ``serve``."""
    stop, begun = asyncio.create_task(told_to_stop.wait()), asyncio.create_task(begin)
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
