"""Owns what is told of a call: its time by phase, and at its end a line of the log, metrics and its span."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import grpc
import structlog

from rescorer.protocol.status import kind_of
from rescorer.service.engine.work_item import ItemScores
from rescorer.service.observability.metrics import Metrics
from rescorer.service.observability.request_id import bind_request_id
from rescorer.service.observability.timings import PhaseTiming, sum_by_phase
from rescorer.service.observability.tracing import CallSpan, Tracing

log = structlog.get_logger()

current_call: ContextVar[Call] = ContextVar("call")
"""The call that this task answers."""


class Call:
    """A call that is being answered.

    Attributes:
        timings: of the message in hand.
        model: that answers it.
        lists: that all its messages had so far.
        failed_lists: of these, answered by a fault of their own; its calls are OK all the same.
        edges: of the batches they were part of.
    """

    def __init__(self, method: str, metrics: Metrics, span: CallSpan | None) -> None:
        self.model = ""
        self.lists = self.failed_lists = self.edges = 0
        self.timings: list[PhaseTiming] = []
        self._method, self._metrics, self._span = method, metrics, span
        self._began = time.perf_counter()
        self._seconds: Counter[str] = Counter()

    def did(self, timings: Sequence[PhaseTiming]) -> None:
        """The message in hand was worked on."""
        self.timings += timings
        self._metrics.timings(timings)

    def scored(self, parts: Sequence[ItemScores]) -> None:
        """Lists of the message in hand waited for batches and were scored in them."""
        if not parts:
            return
        batches = {id(part.batch): part.batch for part in parts}.values()
        self.timings.append(
            min((part.queue for part in parts), key=lambda timing: timing.began + timing.seconds)
        )
        self.timings += [timing for batch in batches for timing in batch.timings]
        self.edges += sum(batch.trie.n_edges for batch in batches)

    def message_ended(self) -> None:
        """Another one may follow."""
        if self._span is not None:
            self._span.add(self.timings)
        self._seconds.update(sum_by_phase(self.timings))
        self.timings = []

    def ended(self, event: str, code: str, fault: Exception | None = None) -> None:
        """Nothing more is done for it.

        Args:
            event: what the log calls this end.
            code: name of the call's status code.
        """
        self.message_ended()
        seconds = time.perf_counter() - self._began
        kind = kind_of(fault) if fault else None
        reason = kind.reason if kind else ""
        self._metrics.call_ended(self._method, code, reason, seconds)
        facts: dict[str, Any] = {
            "method": self._method,
            "code": code,
            "ms": ms(seconds),
            "model": self.model,
            "lists": self.lists,
            "failed_lists": self.failed_lists,
            "edges": self.edges,
            "phase_ms": {phase: ms(each) for phase, each in self._seconds.items()},
            "reason": reason,
        }
        facts = {name: value for name, value in facts.items() if value not in ("", 0, {})}
        if self._span is not None:
            self._span.end(code, facts)
        if kind is not None and kind.hidden:
            log.error(event, **facts, exc_info=fault)
        elif fault is not None:
            log.info(event, **facts, fault=str(fault))
        else:
            log.info(event, **facts)


class Telemetry:
    """Watches the calls of a server.

    Args:
        tracing: None: there are no spans.
    """

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._metrics, self._tracing = metrics, tracing

    def began(self, path: str, context: grpc.aio.ServicerContext) -> Call:
        """A call that has come, from now on the one that this task answers.

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


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
