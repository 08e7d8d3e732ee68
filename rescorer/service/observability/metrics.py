"""Owns the metrics of a server: what each is called, what it means, and how what happens becomes numbers.

One registry a server, never the library's global one. Names follow Prometheus: seconds and bytes, ``_total``
for what only grows. Labels are our own words or the labels of loaded bundles, never what a client sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.registry import Collector

from rescorer.profiling import Phase
from rescorer.protocol.status import error_kind
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import Ranking
from rescorer.score_combination import OOV, WORDS
from rescorer.service.observability.timings import PhaseTiming, label, sum_by_phase

disable_created_metrics()  # a second series for each, of which nobody makes anything

SECONDS = (
    *(float(f"{digits}e{power}") for power in range(-4, 1) for digits in (1, 1.5, 2, 3, 5, 7.5)),
    *(10.0, 15.0, 30.0, 60.0),
)
"""Bounds of times, 0.1 ms to a minute, close enough to tell a p99 of milliseconds."""
READ_TIMEOUT_S = 5.0
"""How long a reader of the metrics waits for a blocked event loop before it gets an error."""
LISTS = tuple(2.0**n for n in range(11))
EDGES = tuple(2.0**n for n in range(4, 19))
SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)
PHASES = tuple(label(each) for each in Phase)
OUTCOMES = ("scored", "failed", "expired", "cancelled")
"""Of a piece of work: its scores are there, it met a fault, its deadline passed, its caller left."""
SHADOW_OUTCOMES = ("compared", "dropped", "failed")
"""Of a list chosen for the shadow: scored, no time for it, it met a fault."""


class Metrics:
    """Of one server.

    Args:
        refresh: sets the gauges; called in whatever thread asks for the numbers, before they are told.
    """

    def __init__(self, refresh: Callable[[], None] = lambda: None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Before(refresh))
        self._calls()
        self._lists()
        self._batches()
        self._state()
        self._shadow()
        ProcessCollector(registry=self.registry)

    def _calls(self) -> None:
        self.calls = self._counter(
            "calls", "Calls ended, by status code and reason.", "method", "code", "reason"
        )
        self.call_seconds = self._times("call_seconds", "From a call's arrival to its end.", "method")
        self.rejected_lists = self._counter("rejected_lists", "Lists for which there was no room or no time.")
        self.streams = self._gauge("streams", "Streams open.")
        self.in_flight_lists = self._gauge("in_flight_lists", "Lists accepted and not yet answered.")
        self.in_flight_tokens = self._gauge(
            "in_flight_tokens", "Words and ends accepted and not yet answered."
        )

    def _lists(self) -> None:
        self.lists = self._counter("lists", "Lists answered, by their own status code.", "model", "code")
        self.best_changed = self._counter(
            "lists_best_changed", "Lists whose best hypothesis was not the first.", "model"
        )
        self.degraded = self._counter(
            "degraded_lists", "Lists answered by less for want of time.", "model", "degradation"
        )
        self.words = self._counter("words", "Canonical words of hypotheses answered.", "model")
        self.unknown_words = self._counter("unknown_words", "Those of them that the n-gram lacks.", "model")

    def _batches(self) -> None:
        self.queue_seconds = self._times("queue_seconds", "A piece of work, from the queue to its scoring.")
        self.pieces = self._counter(
            "pieces", "Pieces of work that left the queue, by what became of them.", "outcome"
        )
        for outcome in OUTCOMES:
            self.pieces.labels(outcome)
        self.batch_lists = self._sizes("batch_lists", "Lists, or pieces of long ones, of a batch.", LISTS)
        self.batch_edges = self._sizes("batch_edges", "Distinct prefixes and ends of a batch.", EDGES)
        self.batch_seconds = self._times("batch_seconds", "Scoring a batch, its trie included.", "model")
        self.tokens = self._counter(
            "tokens", "Words and ends of hypotheses scored, as they were sent.", "model"
        )
        self.trie_edges = self._counter(
            "trie_edges", "Distinct prefixes and ends they came down to, which were computed.", "model"
        )
        self.context_words = self._counter(
            "context_words", "Words of a batch's distinct contexts, once a recurrent network.", "model"
        )
        self.recalled_context_words = self._counter(
            "recalled_context_words", "Those of them that were known from before, and not read.", "model"
        )
        self.phase_seconds = self._times("phase_seconds", "A phase of a message or of a batch.", "phase")
        for phase in PHASES:
            self.phase_seconds.labels(phase)
        self.failed_batches = self._counter(
            "failed_batches", "Batches that failed and were tried list by list."
        )

    def _state(self) -> None:
        Info("rescorer_build", "What runs here.", registry=self.registry).info(
            {"version": version("rescorer")}
        )
        self.ready = self._gauge("ready", "1 while health says SERVING.")
        self.queue_pieces = self._gauge("queue_pieces", "Pieces of work that wait.")
        self.workers_alive = self._gauge("workers_alive", "Workers that can score.")
        self.worker_restarts = self._counter("worker_restarts", "Workers that died or were given up.")
        self.worker_bytes = self._gauge("worker_resident_memory_bytes", "Memory of a worker.", "worker")
        self.device_bytes = self._gauge("device_memory_bytes", "Memory of a worker's GPU.", "worker", "kind")
        self.model_bytes = self._gauge(
            "model_memory_bytes", "Memory that a loaded model is estimated to take in a process.", "model"
        )
        self.models_refused = self._gauge("models_refused", "Versions on disk that cannot be used.")
        self.reloads = self._counter("reloads", "Reloads, by whether anything was refused.", "outcome")
        for outcome in ("done", "refused"):
            self.reloads.labels(outcome)

    def _shadow(self) -> None:
        self.shadow_lists = self._counter(
            "shadow_lists", "Lists chosen for the shadow, by what became of them.", "outcome"
        )
        for outcome in SHADOW_OUTCOMES:
            self.shadow_lists.labels(outcome)
        self.shadow_same_best = self._counter(
            "shadow_same_best", "Lists compared whose best hypothesis is the shadow's, too.", "shadow"
        )
        self.shadow_pairs_alike = self._sizes(
            "shadow_pairs_alike", "Share of a list's pairs that the shadow orders alike.", SHARES, "shadow"
        )
        self.shadow_seconds = self._times(
            "shadow_seconds", "A list in the shadow, from its words to its order.", "shadow"
        )

    def call_ended(self, method: str, code: str, reason: str, seconds: float) -> None:
        """``reason``: of the fault, empty where there was none."""
        self.calls.labels(method, code, reason).inc()
        self.call_seconds.labels(method).observe(seconds)

    def timings(self, timings: Iterable[PhaseTiming]) -> None:
        """What a message or a batch took."""
        for phase, seconds in sum_by_phase(timings).items():
            self.phase_seconds.labels(phase).observe(seconds)

    def record_batch(
        self,
        model: str,
        *,
        items: int,
        tokens: int,
        trie_edges: int,
        context_words: int,
        recalled_context_words: int,
        timings: Sequence[PhaseTiming],
    ) -> None:
        """Count a batch that was scored."""
        self.batch_lists.observe(items)
        self.batch_edges.observe(trie_edges)
        self.batch_seconds.labels(model).observe(sum(timing.seconds for timing in timings))
        self.trie_edges.labels(model).inc(trie_edges)
        self.tokens.labels(model).inc(tokens)
        self.context_words.labels(model).inc(context_words)
        self.recalled_context_words.labels(model).inc(recalled_context_words)
        self.timings(timings)

    def record_item(self, outcome: str, queue_s: float | None = None) -> None:
        """Count a work item that left the queue.

        Args:
            outcome: one of ``OUTCOMES``.
            queue_s: how long it waited, if it was scored.
        """
        self.pieces.labels(outcome).inc()
        if queue_s is not None:
            self.queue_seconds.observe(queue_s)

    def ranked(self, model: str, ranking: Ranking, degradation: pb.Degradation) -> None:
        """A list is answered."""
        self.lists.labels(model, "OK").inc()
        if degradation:
            self.degraded.labels(model, pb.Degradation.Name(degradation).removeprefix("DEGRADATION_")).inc()
        if ranking.order[0]:
            self.best_changed.labels(model).inc()
        if OOV in ranking.components:
            words, unknown = ranking.components[WORDS], ranking.components[OOV]
            self.words.labels(model).inc(sum(words[place] for place in ranking.order))
            self.unknown_words.labels(model).inc(sum(unknown[place] for place in ranking.order))

    def record_reload(self, *, refused: bool) -> None:
        """Count a reload that was requested or that changed something."""
        self.reloads.labels("refused" if refused else "done").inc()

    def shadowed(self, shadow: str, same_best: bool, pairs_alike: float, seconds: float) -> None:
        """The shadow has scored a list, too; arguments as of ``Agreement``."""
        self.shadow_lists.labels("compared").inc()
        self.shadow_same_best.labels(shadow).inc(same_best)
        self.shadow_pairs_alike.labels(shadow).observe(pairs_alike)
        self.shadow_seconds.labels(shadow).observe(seconds)

    def refused(self, model: str, fault: Exception) -> None:
        """A list is answered by its fault alone."""
        self.lists.labels(model, error_kind(fault).code.name).inc()

    def _counter(self, name: str, told: str, *labels: str) -> Counter:
        return Counter(f"rescorer_{name}_total", told, labels, registry=self.registry)

    def _gauge(self, name: str, told: str, *labels: str) -> Gauge:
        return Gauge(f"rescorer_{name}", told, labels, registry=self.registry)

    def _times(self, name: str, told: str, *labels: str) -> Histogram:
        return Histogram(f"rescorer_{name}", told, labels, buckets=SECONDS, registry=self.registry)

    def _sizes(self, name: str, told: str, bounds: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"rescorer_{name}", told, labels, buckets=bounds, registry=self.registry)


class _Before(Collector):
    """Collects nothing, and lets something be done before the others do."""

    def __init__(self, job: Callable[[], None]) -> None:
        self._job = job

    def collect(self) -> Iterable[Metric]:
        self._job()
        return ()
