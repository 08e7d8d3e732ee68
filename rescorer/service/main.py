"""Run a server with one front end in this process until it is stopped or can no longer score."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from rescorer.errors import ScoringError
from rescorer.lm.malloc import keep_freed_memory, share_freed_memory
from rescorer.service.config_sources import unknown_variables
from rescorer.service.observability.logs import log_to_stderr
from rescorer.service.observability.stderr import protect_stderr
from rescorer.service.process_exit import answer_signals
from rescorer.service.server import Server
from rescorer.service.settings import ServiceSettings

log = structlog.get_logger()


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
