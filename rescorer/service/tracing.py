"""Follow a call through the server: its request id, the times of its phases, and its span.

A phase is a kind of work, such as parsing or scoring with the n-gram. The time of each phase goes to the
metrics, to the log line of the call, and to the response.

With the extra ``tracing``, each call also has an OpenTelemetry span that continues the caller's trace, with a
child per phase. Its packages are imported only if spans are requested. The children are created afterwards
from the measured times, so that the scoring code does not depend on spans. If phases alternate, only the
total time of each is known, and their spans are placed one after the other.
"""

from __future__ import annotations

import importlib.util
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc
import structlog

from rescorer.runtime import Phase, Stopwatch

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Result = TypeVar("Result")

REQUEST_ID = "x-request-id"
"""Metadata key of the request id, in the client's metadata and in the server's trailing metadata."""
ACCEPTED_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
"""Request ids that are accepted from clients; others could forge log lines."""

current_request: ContextVar[str] = ContextVar("request_id", default="")
"""The request id of the call that this task answers."""


def bind_request_id(context: grpc.aio.ServicerContext) -> str:
    """Return the request id of the current call: the one that the client sent, or a new one.

    At its first use in a call, the id is bound to the log and sent back to the client.
    """
    request_id = current_request.get()
    if not request_id:
        metadata = context.invocation_metadata() or ()
        sent = (value for key, value in metadata if key == REQUEST_ID and isinstance(value, str))
        request_id = next(filter(ACCEPTED_ID.fullmatch, sent), "") or uuid.uuid4().hex
        current_request.set(request_id)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
    return request_id


QUEUE = "queue"
"""The phase of waiting for a worker."""


class PhaseTiming(NamedTuple):
    """One period spent in a phase."""

    phase: str
    """A ``Phase`` as written by ``label``, or ``QUEUE``."""
    began: float
    """Start, in ``time.perf_counter`` seconds."""
    seconds: float


def label(phase: Phase) -> str:
    """Return the name of a phase in metrics, spans and the log.

    >>> label(Phase.NGRAM)
    'ngram'
    """
    return phase.name.lower()


def seconds_of(stopwatch: Stopwatch) -> dict[str, float]:
    """Return the seconds of each phase that took any time."""
    return {label(phase): seconds for phase, seconds in stopwatch.seconds.items() if seconds}


def timings_from_seconds(seconds: Mapping[str, float], began: float) -> list[PhaseTiming]:
    """Place phases one after the other from ``began``, because only their total times are known."""
    timings = []
    for phase, phase_seconds in seconds.items():
        timings.append(PhaseTiming(phase, began, phase_seconds))
        began += phase_seconds
    return timings


def run_timed(job: Callable[[], Result]) -> tuple[Result, list[PhaseTiming]]:
    """Run a job, and return its result and the timings of its phases."""
    stopwatch, began = Stopwatch(), time.perf_counter()
    with stopwatch.running():
        result = job()
    return result, timings_from_seconds(seconds_of(stopwatch), began)


def sum_by_phase(timings: Iterable[PhaseTiming]) -> dict[str, float]:
    """Sum the seconds of each phase."""
    total: dict[str, float] = {}
    for phase, _, seconds in timings:
        total[phase] = total.get(phase, 0.0) + seconds
    return total


SERVER_ERROR_CODES = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED", "DATA_LOSS"}
)
"""Status codes that OpenTelemetry's conventions count as server errors."""
EXPORT_TIMEOUT_S = 2
"""Longest wait for the collector. To lose spans is better than to delay a stopping server for long."""
REQUIRED_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")


class Tracing:
    """Create the spans of a server's calls.

    Args:
        provider: exports the spans.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("rescorer")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, path: str, metadata: Iterable[tuple[str, Any]], request_id: str) -> CallSpan:
        """Begin the span of a call, which continues the trace of a W3C ``traceparent`` in the metadata."""
        from opentelemetry.trace import SpanKind

        service, _, method = path.lstrip("/").partition("/")
        span = self._tracer.start_span(
            f"{service}/{method}",
            self._propagator.extract({key: str(value) for key, value in metadata}),
            SpanKind.SERVER,
            {
                "rpc.system": "grpc",
                "rpc.service": service,
                "rpc.method": method,
                "rescorer.request_id": request_id,
            },
        )
        return CallSpan(self._tracer, span)

    def stop(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


class CallSpan:
    """The span of one call."""

    def __init__(self, tracer: Any, span: Any) -> None:
        from opentelemetry.trace import set_span_in_context

        self._tracer, self._span = tracer, span
        self._inside = set_span_in_context(span)
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def add(self, timings: Iterable[PhaseTiming]) -> None:
        """Add finished phases as child spans."""
        if not self._span.is_recording():
            return
        for timing in timings:
            child = self._tracer.start_span(timing.phase, self._inside, start_time=self._ns(timing.began))
            child.end(self._ns(timing.began + timing.seconds))

    def end(self, code: str, facts: Mapping[str, Any]) -> None:
        """End the span, and mark it as an error if the code is one of ``SERVER_ERROR_CODES``."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("rpc.grpc.status_code", grpc.StatusCode[code].value[0])
        for name in {"model", "lists", "edges", "reason"} & facts.keys():
            self._span.set_attribute(f"rescorer.{name}", facts[name])
        if code in SERVER_ERROR_CODES:
            self._span.set_status(StatusCode.ERROR, code)
        self._span.end()

    def _ns(self, seconds: float) -> int:
        """Convert ``time.perf_counter`` seconds to Unix time in nanoseconds."""
        return self._epoch_ns + int(seconds * 1e9)


def is_installed() -> bool:
    """Whether the packages for spans are installed."""
    try:
        return all(importlib.util.find_spec(module) for module in REQUIRED_MODULES)
    except ModuleNotFoundError:  # a parent package is missing
        return False


def create_tracing(endpoint: str, share: float, instance: str) -> Tracing:
    """Create tracing that exports to a collector by OTLP over gRPC.

    Args:
        endpoint: URL of the collector; https encrypts.
        share: share of the calls to trace, 0 to 1. A call that continues a trace follows the decision of that
            trace.
        instance: identifies this server among others.
    """
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    resource = Resource.create({"service.name": "rescorer", "service.instance.id": instance})
    provider = TracerProvider(ParentBasedTraceIdRatio(share), resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)
