"""The metrics of a server, and the HTTP port where Prometheus reads them.

Every server has a separate registry. Names follow the rules of Prometheus: units are seconds and bytes, and
counters end in ``_total``. Values of labels are our own words or the names and versions of loaded bundles,
never texts from clients.

The port is served in the server's event loop, with one request per connection. However many connections there
are, and however slowly they send or read, they take no threads and a bounded amount of memory, and are closed
after seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from rescorer.errors import ConfigError
from rescorer.protocol.messages import error_kind, format_address
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import Ranking
from rescorer.runtime import ContextWords, Phase
from rescorer.service.listener import explain
from rescorer.service.logs import dropped_lines
from rescorer.service.tracing import PhaseTiming, label, sum_by_phase
from rescorer.weights import OOV, WORDS

if TYPE_CHECKING:
    from rescorer.service.repository import Changes

log = structlog.get_logger()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if the process has ended, or if this is not Linux."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


disable_created_metrics()  # they would double the number of series

SECONDS = (
    *(float(f"{digits}e{power}") for power in range(-4, 1) for digits in (1, 1.5, 2, 3, 5, 7.5)),
    *(10.0, 15.0, 30.0, 60.0),
)
"""Bucket bounds of times, 0.1 ms to a minute. They are fine enough to tell a 99th percentile of some ms."""
READ_TIMEOUT_S = 5.0
"""Longest wait of a reader of the metrics for a blocked event loop. Then the reader gets an error."""
LISTS = tuple(2.0**n for n in range(11))
EDGES = tuple(2.0**n for n in range(4, 19))
SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)
DROPPED_LINES = "rescorer_log_lines_dropped"
"""Name of the metric that counts log lines that were not written. Every process reports its own."""
PHASES = tuple(label(each) for each in Phase)
OUTCOMES = ("scored", "failed", "expired", "cancelled")
"""Possible outcomes of a work item: scored, failed, past its deadline, or cancelled by its caller."""
SHADOW_OUTCOMES = ("compared", "dropped", "failed")
"""Possible outcomes of a list chosen for the shadow: compared, dropped under load, or failed."""


class Metrics:
    """The metrics of one server.

    Args:
        refresh: sets the gauges; called before the metrics are read, in the reading thread.
    """

    def __init__(self, refresh: Callable[[], None] = lambda: None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_RefreshCollector(refresh))
        self._create_of_calls_and_lists()
        self._create_of_batches()
        self._create_of_state()
        self._create_of_shadow()
        self.registry.register(DroppedLinesCollector())
        ProcessCollector(registry=self.registry)

    def _create_of_calls_and_lists(self) -> None:
        self.calls = self._counter(
            "calls", "Finished calls, by status code and reason.", "method", "code", "reason"
        )
        self.call_seconds = self._times("call_seconds", "Time from a call's arrival to its end.", "method")
        self.rejected_lists = self._counter("rejected_lists", "Lists refused for lack of capacity or time.")
        self.starved_clients = self._counter(
            "starved_clients",
            "Times that a client with no call in flight was refused ten times in a row by idle workers.",
        )
        self.streams = self._gauge("streams", "Open streams.")
        self.in_flight_lists = self._gauge("in_flight_lists", "Lists accepted and not yet answered.")
        self.in_flight_tokens = self._gauge(
            "in_flight_tokens", "Words and sentence ends accepted and not yet answered."
        )
        self.in_flight_bytes = self._gauge(
            "in_flight_bytes", "Requests not yet answered, their expected answers, and unread answers."
        )
        self.unread_bytes = self._gauge("unread_bytes", "Answers that clients have not read yet.")
        self.unread_answers = self._counter(
            "unread_answers", "Answers that were not read in time, and whose calls were cancelled."
        )
        self.connections_cut_off = self._counter(
            "connections_cut_off", "Connections that reset their calls endlessly, and were closed."
        )
        self.lists = self._counter("lists", "Answered lists, by their own status code.", "model", "code")
        self.best_changed = self._counter(
            "lists_best_changed", "Lists whose best hypothesis was not the first one.", "model"
        )
        self.degraded = self._counter(
            "degraded_lists",
            "Lists with degraded scoring, for lack of time or for their length.",
            "model",
            "degradation",
        )
        self.words = self._counter("words", "Canonical words of answered hypotheses.", "model")
        self.unknown_words = self._counter(
            "unknown_words", "Canonical words that the n-gram does not know.", "model"
        )

    def _create_of_batches(self) -> None:
        self.queue_seconds = self._times("queue_seconds", "Time that a work item waits in the queue.")
        self.pieces = self._outcomes("pieces", "Work items that left the queue, by outcome.", *OUTCOMES)
        self.batch_lists = self._sizes("batch_lists", "Lists, or parts of long lists, per batch.", LISTS)
        self.batch_edges = self._sizes("batch_edges", "Distinct prefixes and sentence ends per batch.", EDGES)
        self.batch_seconds = self._times(
            "batch_seconds", "Time to score a batch, including its trie.", "model"
        )
        self.tokens = self._counter(
            "tokens", "Words and sentence ends of scored hypotheses, before sharing prefixes.", "model"
        )
        self.trie_edges = self._counter(
            "trie_edges", "Distinct prefixes and sentence ends that were computed.", "model"
        )
        self.context_words = self._counter(
            "context_words", "Words of distinct contexts per batch and recurrent network.", "model"
        )
        self.recalled_context_words = self._counter(
            "recalled_context_words", "Context words whose states came from the cache.", "model"
        )
        phase_seconds = self._times("phase_seconds", "Time of a phase, per message or batch.", "phase")
        self._phase_seconds = {phase: phase_seconds.labels(phase) for phase in PHASES}
        self.failed_batches = self._counter(
            "failed_batches", "Batches that failed and were retried list by list."
        )

    def _create_of_state(self) -> None:
        Info("rescorer_build", "Version of the server.", registry=self.registry).info(
            {"version": version("rescorer")}
        )
        self.ready = self._gauge("ready", "1 while health reports SERVING.")
        self.queue_pieces = self._gauge("queue_pieces", "Work items in the queue.")
        self.workers_alive = self._gauge("workers_alive", "Workers that can score.")
        self.worker_restarts = self._counter("worker_restarts", "Workers that died or were terminated.")
        self.worker_bytes = self._gauge(
            "worker_resident_memory_bytes", "Resident memory of a worker.", "worker"
        )
        self.device_bytes = self._gauge(
            "device_memory_bytes", "GPU memory of a worker, by kind.", "worker", "kind"
        )
        self.model_bytes = self._gauge(
            "model_memory_bytes", "Estimated memory of a loaded model per process.", "model"
        )
        self.models_refused = self._gauge("models_refused", "Versions on disk that cannot be served.")
        self.versions_missing = self._gauge(
            "model_versions_missing", "Versions in service that could not be loaded again from the disk."
        )
        help_text = "Reloads, by whether anything was refused."
        self.reloads = self._outcomes("reloads", help_text, "done", "refused")

    def _create_of_shadow(self) -> None:
        help_text = "Lists chosen for the shadow, by outcome."
        self.shadow_lists = self._outcomes("shadow_lists", help_text, *SHADOW_OUTCOMES)
        self.shadow_same_best = self._counter(
            "shadow_same_best", "Compared lists with the same best hypothesis.", "shadow"
        )
        self.shadow_pairs_alike = self._sizes(
            "shadow_pairs_alike", "Share of a list's hypothesis pairs in the same order.", SHARES, "shadow"
        )
        self.shadow_seconds = self._times(
            "shadow_seconds", "Time to score and rank a list in the shadow.", "shadow"
        )

    def record_call(self, method: str, code: str, reason: str, seconds: float) -> None:
        """Record the end of a call. ``reason`` names the kind of its error; empty if it had none."""
        self.calls.labels(method, code, reason).inc()
        self.call_seconds.labels(method).observe(seconds)

    def record_timings(self, timings: Iterable[PhaseTiming]) -> None:
        """Record the timings of a message or a batch."""
        for phase, seconds in sum_by_phase(timings).items():
            self._phase_seconds[phase].observe(seconds)

    def record_batch(
        self,
        model: str,
        *,
        items: int,
        tokens: int,
        trie_edges: int,
        context_words: ContextWords,
        timings: Sequence[PhaseTiming],
    ) -> None:
        """Count a batch that was scored."""
        self.batch_lists.observe(items)
        self.batch_edges.observe(trie_edges)
        self.batch_seconds.labels(model).observe(sum(timing.seconds for timing in timings))
        self.trie_edges.labels(model).inc(trie_edges)
        self.tokens.labels(model).inc(tokens)
        self.context_words.labels(model).inc(context_words.needed)
        self.recalled_context_words.labels(model).inc(context_words.recalled)
        self.record_timings(timings)

    def record_item(self, outcome: str, queue_s: float | None = None) -> None:
        """Count a work item that left the queue.

        Args:
            outcome: one of ``OUTCOMES``.
            queue_s: how long it waited, if it was scored.
        """
        self.pieces.labels(outcome).inc()
        if queue_s is not None:
            self.queue_seconds.observe(queue_s)

    def record_ranked_list(self, model: str, ranking: Ranking, degradation: pb.Degradation) -> None:
        """Record a list that was ranked."""
        self.lists.labels(model, "OK").inc()
        if degradation:
            self.degraded.labels(model, pb.Degradation.Name(degradation).removeprefix("DEGRADATION_")).inc()
        if ranking.order[0]:
            self.best_changed.labels(model).inc()
        if OOV in ranking.components:
            order = list(ranking.order)
            self.words.labels(model).inc(ranking.components[WORDS][order].sum())
            self.unknown_words.labels(model).inc(ranking.components[OOV][order].sum())

    def record_reload(self, changes: Changes) -> None:
        """Count a reload that was requested or that changed something."""
        self.reloads.labels("refused" if changes.refused else "done").inc()

    def record_shadow_list(self, shadow: str, same_best: bool, pairs_alike: float, seconds: float) -> None:
        """Record a list that the shadow also scored; see ``compare_with_answer`` for the arguments."""
        self.shadow_lists.labels("compared").inc()
        self.shadow_same_best.labels(shadow).inc(same_best)
        self.shadow_pairs_alike.labels(shadow).observe(pairs_alike)
        self.shadow_seconds.labels(shadow).observe(seconds)

    def record_refused_list(self, model: str, error: Exception) -> None:
        """Record a list that was answered with an error."""
        self.lists.labels(model, error_kind(error).code.name).inc()

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"rescorer_{name}_total", help_text, labels, registry=self.registry)

    def _outcomes(self, name: str, help_text: str, *outcomes: str) -> Counter:
        """Create a counter in which each outcome has a series from the start, with the value 0."""
        counter = self._counter(name, help_text, "outcome")
        for outcome in outcomes:
            counter.labels(outcome)
        return counter

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"rescorer_{name}", help_text, labels, registry=self.registry)

    def _times(self, name: str, help_text: str, *labels: str) -> Histogram:
        return Histogram(f"rescorer_{name}", help_text, labels, buckets=SECONDS, registry=self.registry)

    def _sizes(self, name: str, help_text: str, bounds: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"rescorer_{name}", help_text, labels, buckets=bounds, registry=self.registry)


class _RefreshCollector(Collector):
    """A collector that has no samples, but runs a function before the other collectors are read."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self._refresh = refresh

    def collect(self) -> Iterable[Metric]:
        self._refresh()
        return ()


class DroppedLinesCollector(Collector):
    """The log lines that this process has dropped."""

    def collect(self) -> Iterable[Metric]:
        help_text = "Log lines dropped because stderr was full, closed or not read."
        yield CounterMetricFamily(DROPPED_LINES, help_text, value=dropped_lines.total)


PATHS = ("/metrics", "/")
MAX_CONNECTIONS = 64
"""Largest number of open connections. For one more, the connection whose client has been slow longest is
closed."""
MAX_REQUEST_BYTES = 8192
REQUEST_TIMEOUT_S = 10.0
RESPONSE_TIMEOUT_S = 10.0
"""Longest time that a client may take to read the response."""


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Values by name in lower case."""


class HttpError(Exception):
    """The status and text of the error with which a request is answered."""

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
        """Connections that wait for their clients to send or read, longest wait first."""
        self.port = 0

    @classmethod
    async def start(cls, host: str, port: int, registry: CollectorRegistry) -> MetricsEndpoint:
        """Listen in the running event loop.

        Args:
            port: 0: any free port.

        Raises:
            ConfigError: the address is taken.
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
        """Mark a connection as waiting for its client during the ``with`` block.

        Meanwhile it may be closed to make room for a new connection.
        """
        self._waiting[connection] = None
        try:
            yield
        finally:
            self._waiting.pop(connection, None)

    async def _respond(self, connection: asyncio.Task[None], reader: asyncio.StreamReader) -> bytes:
        """Read the request and return the response.

        Raises:
            EOFError, OSError: the client is gone.
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
        HttpError: the request is not HTTP, too large, or does not arrive in time.
        EOFError, OSError: the client is gone.
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

    If the server closed the connection first, while bytes of the request were unread, the client could lose
    the response.
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
