"""Connections that open calls and reset them without end: they are counted, and cut off.

HTTP/2 does not count a call as open any more when its client has reset it, but the server has to take the
call before it can find that out. A client can reset calls faster than a server takes them. gRPC has no way to
close one of its connections, so the socket is shut down behind its back.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import resource
import socket
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

import structlog

from rescorer.runtime import release_freed_memory

log = structlog.get_logger()

RESETS_PER_S = 50.0
"""Resets per second that a connection may continue with for ever. Each call that it lets the server answer
allows for another."""
REPEATED_BURST = 64
"""Resets without a pause that connections of an address may make after one of them was cut off."""
REMEMBERED_S = 60.0
"""Time for which the address of a connection that was cut off is remembered."""
DROPPED_S = 10.0
"""Time for which calls of a connection that was cut off are dropped. They were waiting to be taken."""


@dataclass(slots=True)
class Budget:
    """How many more resets a connection may make."""

    resets: float
    at: float
    """Time of the latest reset."""


class ConnectionGuard:
    """Counts the calls that each connection resets before they are served, and cuts off those with too many.

    Connections are named as gRPC names their other ends, such as ``ipv4:127.0.0.1:4711``. To be used in the
    event loop only.

    Args:
        burst: resets that a connection may make without a pause.
        on_cut_off: called whenever a connection is cut off.
        close: closes a connection. It is called in a thread.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        burst: int,
        on_cut_off: Callable[[], object] = lambda: None,
        close: Callable[[str], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst, self._on_cut_off = burst, on_cut_off
        self._close, self._clock = close or close_connection, clock
        self._budgets: dict[str, Budget] = {}  # the longest unused first
        self._addresses: dict[str, float] = {}  # when a connection was last cut off, by address, oldest first
        self._dropped: set[str] = set()

    def is_suspect(self, peer: str) -> bool:
        """Whether a connection has less than half of a budget left.

        One from an address of which another was cut off begins with less, so it is suspect from its first
        reset on.
        """
        budget = self._budgets.get(peer)
        return budget is not None and budget.resets < self._burst / 2

    def is_cut_off(self, peer: str) -> bool:
        """Whether calls of a connection should be dropped."""
        return peer in self._dropped

    def record_answer(self, peer: str) -> None:
        """Count a call that the connection let the server answer."""
        if budget := self._budgets.get(peer):
            budget.resets += 1

    def record_reset(self, peer: str) -> None:
        """Count a call that the connection reset before it was served."""
        now, address = self._clock(), peer.rpartition(":")[0]
        self._forget(now)
        burst = REPEATED_BURST if address in self._addresses else self._burst
        budget = self._budgets.pop(peer, None) or Budget(burst, now)
        budget.resets = min(burst, budget.resets + (now - budget.at) * RESETS_PER_S) - 1
        budget.at = now
        self._budgets[peer] = budget
        if budget.resets < 0 and peer not in self._dropped:
            self._addresses.pop(address, None)
            self._addresses[address] = now
            self._cut(peer)

    def _cut(self, peer: str) -> None:
        self._dropped.add(peer)
        self._on_cut_off()
        loop = asyncio.get_running_loop()
        loop.call_later(DROPPED_S, self._end_dropping, peer)
        closing = loop.run_in_executor(None, self._close, peer)  # among many descriptors, it takes long

        def report(closed: asyncio.Future[bool]) -> None:
            if not closed.cancelled():
                is_closed = closed.exception() is None and closed.result()
                log.warning("a connection that resets its calls is cut off", peer=peer, closed=is_closed)

        closing.add_done_callback(report)

    def _end_dropping(self, peer: str) -> None:
        self._dropped.discard(peer)
        if not self._dropped:  # gRPC has freed what the calls took
            asyncio.get_running_loop().run_in_executor(None, release_freed_memory)

    def _forget(self, now: float) -> None:
        """Forget addresses after some time, and connections that have their whole budget again."""
        while self._addresses and now - self._addresses[oldest := next(iter(self._addresses))] > REMEMBERED_S:
            del self._addresses[oldest]
        while self._budgets:
            peer, budget = next(iter(self._budgets.items()))
            if now - budget.at < self._burst / RESETS_PER_S:
                break
            del self._budgets[peer]


MAX_SCANNED = 65_536
"""Most descriptors that are tried one by one."""
IP = (socket.AF_INET, socket.AF_INET6)


def close_connection(peer: str) -> bool:
    """Shut down a TCP connection of this process; for gRPC, the client has closed it.

    Args:
        peer: the other end as gRPC names it, such as ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``.

    Returns:
        False if there is no such connection.
    """
    for number in open_descriptors():
        with suppress(OSError):  # closed in the meantime, or not connected
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            connection = socket.socket(fileno=number)  # no copy: there may be no free descriptor
            try:
                if connection.family in IP and name_peer(connection.getpeername()) == unquote(peer):
                    connection.shutdown(socket.SHUT_RDWR)
                    return True
            finally:
                connection.detach()  # it is gRPC's
    return False


def open_descriptors() -> Iterable[int]:
    """List the descriptors of this process; all that it may have, if none is free to read the list."""
    try:
        return map(int, os.listdir("/dev/fd"))
    except OSError:
        return range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MAX_SCANNED))


def name_peer(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """Name the other end of a connection as gRPC does, but without escapes.

    >>> name_peer(("::ffff:127.0.0.1", 4711, 0, 0)), name_peer(("::1", 4711, 0, 0))
    ('ipv4:127.0.0.1:4711', 'ipv6:[::1]:4711')
    """
    ip = ipaddress.ip_address(address[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return f"ipv4:{ip}:{address[1]}" if ip.version == 4 else f"ipv6:[{ip}]:{address[1]}"
