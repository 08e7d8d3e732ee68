"""Measure each call by phase and, at its end, write its log line, metrics and span."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import grpc
import structlog

from rescorer.protocol.status import error_kind
from rescorer.service.engine.work_item import ItemScores
from rescorer.service.observability.metrics import Metrics
from rescorer.service.observability.request_id import bind_request_id
from rescorer.service.observability.timings import PhaseTiming, sum_by_phase
from rescorer.service.observability.tracing import CallSpan, Tracing

log = structlog.get_logger()

current_call: ContextVar[Call] = ContextVar("call")
"""The call that this task handles."""


class Call:
    """Telemetry of one call.

    Attributes:
        timings: phases of the current message.
        request_bytes: size of the current message.
        model: label of the bundle that serves the call.
        lists: number of lists in all messages so far.
        failed_lists: number of lists that were answered with an individual error, which does not affect the
            status of the call.
        edges: total number of trie edges in the batches that contained these lists.
    """

    def __init__(self, method: str, metrics: Metrics, span: CallSpan | None) -> None:
        self.model = ""
        self.lists = self.failed_lists = self.edges = 0
        self.timings: list[PhaseTiming] = []
        self.request_bytes = 0
        self._method, self._metrics, self._span = method, metrics, span
        self._began_at = time.perf_counter()
        self._seconds: Counter[str] = Counter()

    def record_timings(self, timings: Sequence[PhaseTiming]) -> None:
        """Record phases of the current message."""
        self.timings += timings
        self._metrics.record_timings(timings)

    def record_scores(self, parts: Sequence[ItemScores]) -> None:
        """Record the queueing and the batches of the current message's lists."""
        if not parts:
            return
        batches = {id(part.scored): part.scored for part in parts}.values()
        self.timings.append(
            min((part.queue for part in parts), key=lambda timing: timing.began + timing.seconds)
        )
        self.timings += [timing for scored in batches for timing in scored.timings]
        self.edges += sum(scored.batch.trie.n_edges for scored in batches)

    def finish_message(self) -> None:
        """Finish the current message; another one may follow."""
        if self._span is not None:
            self._span.add(self.timings)
        self._seconds.update(sum_by_phase(self.timings))
        self.timings = []

    def finish(self, event: str, code: str, error: Exception | None = None) -> None:
        """Finish the call: write its log line, metrics and span.

        Args:
            event: event of the log line.
            code: name of the call's status code.
            error: the error that ended the call, if any.
        """
        self.finish_message()
        seconds = time.perf_counter() - self._began_at
        kind = error_kind(error) if error else None
        reason = kind.reason if kind else ""
        self._metrics.record_call(self._method, code, reason, seconds)
        fields: dict[str, Any] = {
            "method": self._method,
            "code": code,
            "ms": to_ms(seconds),
            "model": self.model,
            "lists": self.lists,
            "failed_lists": self.failed_lists,
            "edges": self.edges,
            "phase_ms": {phase: to_ms(phase_s) for phase, phase_s in self._seconds.items()},
            "reason": reason,
        }
        fields = {name: value for name, value in fields.items() if value not in ("", 0, {})}
        if self._span is not None:
            self._span.end(code, fields)
        if kind is not None and kind.hidden:
            log.error(event, **fields, exc_info=error)
        elif error is not None:
            log.info(event, **fields, error=str(error))
        else:
            log.info(event, **fields)


class Telemetry:
    """Create the telemetry of a server's calls.

    Args:
        tracing: creates spans; None: no spans are created.
    """

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._metrics, self._tracing = metrics, tracing

    def begin(self, path: str, context: grpc.aio.ServicerContext) -> Call:
        """Begin a call and make it the current one of this task.

        Args:
            path: ``/service/method``.
        """
        request_id = bind_request_id(context)
        span = None
        if self._tracing is not None:
            span = self._tracing.begin(path, context.invocation_metadata() or (), request_id)
            structlog.contextvars.bind_contextvars(trace_id=span.trace_id)
        call = Call(path.rpartition("/")[2], self._metrics, span)
        current_call.set(call)
        return call


def to_ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
