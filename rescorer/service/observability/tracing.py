"""Owns the spans of calls, by OpenTelemetry: one a call, continuing its caller's trace, and a child a phase.

The packages are those of the extra ``tracing``, imported where spans are asked for. Phases are told when they
are over, from the times that were measured anyway: whoever scores knows nothing of spans. Of phases that
alternate only the sums are known, and they are drawn one after the other.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from rescorer.service.observability.timings import PhaseTiming

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SERVER_FAULTS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED", "DATA_LOSS"}
)
"""Codes that are errors of a server, as OpenTelemetry's conventions count."""
EXPORT_TIMEOUT_S = 2
"""Spans are lost rather than a server that stops held up."""
NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")


class Tracing:
    """Makes the spans of a server's calls.

    Args:
        provider: where they go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("rescorer")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, path: str, metadata: Iterable[tuple[str, Any]], request_id: str) -> CallSpan:
        """The span of a call, which continues the trace of W3C's ``traceparent`` in the metadata, if any."""
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
        """Sends what is not sent yet."""
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
        """Phases that are over, as children."""
        if not self._span.is_recording():
            return
        for timing in timings:
            child = self._tracer.start_span(timing.phase, self._inside, start_time=self._ns(timing.began))
            child.end(self._ns(timing.began + timing.seconds))

    def end(self, code: str, facts: Mapping[str, Any]) -> None:
        """The call has ended; faults of the server's own are marked as errors."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("rpc.grpc.status_code", grpc.StatusCode[code].value[0])
        for name in ("model", "lists", "edges", "reason"):
            if name in facts:
                self._span.set_attribute(f"rescorer.{name}", facts[name])
        if code in SERVER_FAULTS:
            self._span.set_status(StatusCode.ERROR, code)
        self._span.end()

    def _ns(self, seconds: float) -> int:
        """Unix time of a moment in ``time.perf_counter`` seconds."""
        return self._epoch_ns + int(seconds * 1e9)


def is_installed() -> bool:
    """Whether spans can be made and sent here."""
    try:
        return all(importlib.util.find_spec(each) for each in NEEDED)
    except ModuleNotFoundError:  # of a package above
        return False


def tracing_to(endpoint: str, share: float, instance: str) -> Tracing:
    """Spans to a collector that speaks OTLP over gRPC.

    Args:
        endpoint: its URL; https encrypts.
        share: of the calls that continue no sampled trace, 0 to 1.
        instance: tells this server from its like.
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
