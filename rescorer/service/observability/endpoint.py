"""The HTTP port where Prometheus reads the metrics, in the server's event loop.

A connection carries one request. However many connections there are and however slowly they send or read,
they take no threads, a bounded amount of memory, and seconds until they are closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from rescorer.errors import ConfigError
from rescorer.protocol.addresses import format_address
from rescorer.service.net.addresses import explain

PATHS = ("/metrics", "/")
MAX_CONNECTIONS = 64
"""Largest number of open connections. A new one closes the one that has kept the server waiting longest."""
MAX_REQUEST_BYTES = 8192
REQUEST_TIMEOUT_S = 10.0
RESPONSE_TIMEOUT_S = 10.0
"""Longest time in which a client may read the response."""

log = structlog.get_logger()


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Values by name in lower case."""


class HttpError(Exception):
    """A request that is answered with an error.

    Args:
        status: status of the response.
        reason: its text.
    """

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class MetricsEndpoint:
    """Answer GET and HEAD of /metrics until stopped; created by ``start``."""

    _server: asyncio.Server

    def __init__(self, registry: CollectorRegistry) -> None:
        self._app = make_wsgi_app(registry)
        # Collectors wait for the event loop, so that they cannot run in it.
        self._reader = ThreadPoolExecutor(1, "metrics")
        self._connections: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Connections whose clients have to send or read, those that have to for longest first."""
        self.port = 0

    @classmethod
    async def start(cls, host: str, port: int, registry: CollectorRegistry) -> MetricsEndpoint:
        """Listen in the running event loop.

        Args:
            port: 0: any free port.

        Raises:
            ConfigError: If the address is taken.
        """
        endpoint = cls(registry)
        try:
            ((family, _, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            listening = socket.create_server(address[:2], family=family)
        except OSError as error:
            address_text = format_address(host, port)
            raise ConfigError(f"metrics cannot listen on {address_text}: {explain(error)}") from None
        endpoint.port = listening.getsockname()[1]
        endpoint._server = await asyncio.start_server(
            endpoint._answer, sock=listening, limit=MAX_REQUEST_BYTES
        )
        return endpoint

    async def stop(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the only request of a connection and close it."""
        connection = asyncio.current_task()
        assert connection is not None
        if len(self._connections) >= MAX_CONNECTIONS and not self._close_oldest():
            writer.transport.abort()
            return
        self._connections.add(connection)
        writer.transport.set_write_buffer_limits(0)  # draining waits until everything is sent
        try:
            with suppress(OSError, EOFError, TimeoutError, asyncio.CancelledError):  # gone, slow or stopping
                response = await self._respond(connection, reader)
                with self._waiting_for_client(connection):
                    async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                        await send_and_close(response, reader, writer)
        finally:
            self._connections.discard(connection)
            writer.transport.abort()

    def _close_oldest(self) -> bool:
        """Close the connection that has waited longest for its client; return whether there is one."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        del self._waiting[oldest]
        self._connections.discard(oldest)
        oldest.cancel()
        return True

    @contextmanager
    def _waiting_for_client(self, connection: asyncio.Task[None]) -> Iterator[None]:
        """Let a new connection close this one during the ``with`` block."""
        self._waiting[connection] = None
        try:
            yield
        finally:
            self._waiting.pop(connection, None)

    async def _respond(self, connection: asyncio.Task[None], reader: asyncio.StreamReader) -> bytes:
        """Read the request and return the response.

        Raises:
            EOFError, OSError: If the client is gone.
        """
        try:
            with self._waiting_for_client(connection):
                request = await read_request(reader)
        except HttpError as error:
            return format_response(error.status, str(error))
        if request.path not in PATHS:
            return format_response(HTTPStatus.NOT_FOUND, "expected /metrics")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, request)
        except Exception as error:
            log.warning("the metrics cannot be read", exc_info=error)
            return format_response(HTTPStatus.SERVICE_UNAVAILABLE, "the metrics cannot be read; see the log")

    def _read(self, request: HttpRequest) -> bytes:
        """Read the metrics in the format that the client asks for; called in a thread."""
        environ = {
            "REQUEST_METHOD": "GET" if request.method == "HEAD" else request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in request.headers.items()},
        }
        begun: list[tuple[str, list[tuple[str, str]]]] = []
        body = b"".join(self._app(environ, lambda status, headers: begun.append((status, headers))))
        ((status, headers),) = begun
        return join_response(status, headers, body, with_body=request.method != "HEAD")


async def read_request(reader: asyncio.StreamReader) -> HttpRequest:
    """Read the head of a request.

    Raises:
        HttpError: If it is not HTTP, too large, or does not arrive in time.
        EOFError, OSError: If the client is gone.
    """
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except TimeoutError:
        reason = f"the request did not arrive within {REQUEST_TIMEOUT_S:g} s"
        raise HttpError(HTTPStatus.REQUEST_TIMEOUT, reason) from None
    except asyncio.LimitOverrunError:
        reason = f"expected at most {MAX_REQUEST_BYTES} bytes"
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason) from None
    first, *lines = head[:-4].split("\r\n")
    parts = first.split(" ")
    fields = [line.partition(":") for line in lines]
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not all(colon for _, colon, _ in fields):
        raise HttpError(HTTPStatus.BAD_REQUEST, "expected HTTP/1.1, such as GET /metrics HTTP/1.1")
    path, _, query = parts[1].partition("?")
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return HttpRequest(parts[0], path, query, headers)


async def send_and_close(response: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a response, and wait until the client closes the connection.

    If the server closed it first, with unread bytes of the request, the client could lose the response.
    """
    writer.write(response)
    await writer.drain()
    writer.write_eof()
    while await reader.read(MAX_REQUEST_BYTES):
        pass


def format_response(status: HTTPStatus, text: str) -> bytes:
    headers = [("Content-Type", "text/plain; charset=utf-8")]
    return join_response(f"{status.value} {status.phrase}", headers, f"{text}\n".encode(), with_body=True)


def join_response(status: str, headers: list[tuple[str, str]], body: bytes, *, with_body: bool) -> bytes:
    """Build a response after which the connection is closed."""
    more = [("Content-Length", str(len(body))), ("Connection", "close")]
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in (*headers, *more))]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + (body if with_body else b"")
