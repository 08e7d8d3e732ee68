"""Owns gRPC's listening server, and makes it anew where gRPC itself has given it up.

grpc.aio (1.85.1, and others) ends its loop, and with it the listening, over a call whose path is not UTF-8,
which anybody who can connect may send, with a login or without. Calls that are open go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import structlog

LOOK_EVERY_S = 0.05

log = structlog.get_logger()


class Listener:
    """Listens until it is told to stop.

    Args:
        make: a new server with all its services, bound to no port.
        bind: binds one to a port, 0 being any; returns the port. Raises ConfigError where that is taken.
        lost: called with the reason where it cannot listen any more.
        grace_s: how long the calls of a server that has given up may still take.
    """

    def __init__(
        self,
        make: Callable[[], grpc.aio.Server],
        bind: Callable[[grpc.aio.Server, int], int],
        lost: Callable[[str], None],
        grace_s: float,
    ) -> None:
        self._make, self._bind, self._lost, self._grace_s = make, bind, lost, grace_s
        self._server = make()
        self._before: list[grpc.aio.Server] = []
        """Servers that have given up, and may still have calls."""
        self._ending: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    async def start(self, port: int) -> int:
        """The port. Raises ConfigError where it is taken."""
        bound = await self._start(port)
        self._watching = asyncio.create_task(self._watch(bound))
        return bound

    async def stop(self, grace_s: float | None) -> None:
        """As of ``grpc.aio.Server``; None: at once."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(each.stop(grace_s) for each in (*self._before, self._server)))

    async def _start(self, port: int) -> int:
        bound = self._bind(self._server, port)
        await self._server.start()
        return bound

    async def _watch(self, port: int) -> None:
        while True:
            try:
                # Only so does gRPC tell of its own end while calls are open.
                await self._server.wait_for_termination(LOOK_EVERY_S)
            except Exception as crash:
                log.warning("gRPC has stopped listening; it is made to listen again", fault=repr(crash))
                try:
                    await self._again(port)
                except Exception as fault:
                    self._lost(f"gRPC stopped listening and cannot again: {fault}")
                    return

    async def _again(self, port: int) -> None:
        task = asyncio.create_task(self._end(self._server))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        self._server = self._make()
        await self._start(port)

    async def _end(self, server: grpc.aio.Server) -> None:
        self._before.append(server)
        await server.stop(self._grace_s)
        self._before.remove(server)
