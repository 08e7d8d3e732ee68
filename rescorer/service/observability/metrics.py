"""The metrics of a server, and the methods that record events in them.

Every server has its own registry. Names follow Prometheus: seconds and bytes, ``_total`` for counters. Labels
are our own words or the labels of loaded bundles, never texts from clients.
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
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from rescorer.lm.contexts.context_stats import ContextWords
from rescorer.protocol.status import error_kind
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.ranking import Ranking
from rescorer.runtime.profiling import Phase
from rescorer.score_combination import OOV, WORDS
from rescorer.service.observability.stderr import dropped_lines
from rescorer.service.observability.timings import PhaseTiming, label, sum_by_phase

disable_created_metrics()  # they would double the number of series

SECONDS = (
    *(float(f"{digits}e{power}") for power in range(-4, 1) for digits in (1, 1.5, 2, 3, 5, 7.5)),
    *(10.0, 15.0, 30.0, 60.0),
)
"""Bucket bounds of times, 0.1 ms to a minute, fine enough for a 99th percentile of milliseconds."""
READ_TIMEOUT_S = 5.0
"""How long a reader of the metrics waits for a blocked event loop before it gets an error."""
LISTS = tuple(2.0**n for n in range(11))
EDGES = tuple(2.0**n for n in range(4, 19))
SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)
DROPPED_LINES = "rescorer_log_lines_dropped"
"""Metric that every process reports for itself."""
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
        self._calls()
        self._lists()
        self._batches()
        self._state()
        self._shadow()
        self.registry.register(DroppedLinesCollector())
        ProcessCollector(registry=self.registry)

    def _calls(self) -> None:
        self.calls = self._counter(
            "calls", "Finished calls, by status code and reason.", "method", "code", "reason"
        )
        self.call_seconds = self._times("call_seconds", "Time from a call's arrival to its end.", "method")
        self.rejected_lists = self._counter("rejected_lists", "Lists refused for lack of capacity or time.")
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

    def _lists(self) -> None:
        self.lists = self._counter("lists", "Answered lists, by their own status code.", "model", "code")
        self.best_changed = self._counter(
            "lists_best_changed", "Lists whose best hypothesis was not the first one.", "model"
        )
        self.degraded = self._counter(
            "degraded_lists", "Lists with degraded scoring for lack of time.", "model", "degradation"
        )
        self.words = self._counter("words", "Canonical words of answered hypotheses.", "model")
        self.unknown_words = self._counter(
            "unknown_words", "Canonical words that the n-gram does not know.", "model"
        )

    def _batches(self) -> None:
        self.queue_seconds = self._times("queue_seconds", "Time that a work item waits in the queue.")
        self.pieces = self._counter("pieces", "Work items that left the queue, by outcome.", "outcome")
        for outcome in OUTCOMES:
            self.pieces.labels(outcome)
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

    def _state(self) -> None:
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
        self.reloads = self._counter("reloads", "Reloads, by whether anything was refused.", "outcome")
        for outcome in ("done", "refused"):
            self.reloads.labels(outcome)

    def _shadow(self) -> None:
        self.shadow_lists = self._counter(
            "shadow_lists", "Lists chosen for the shadow, by outcome.", "outcome"
        )
        for outcome in SHADOW_OUTCOMES:
            self.shadow_lists.labels(outcome)
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
        """Record the end of a call; ``reason`` is that of its error, empty if there was none."""
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

    def record_reload(self, *, refused: bool) -> None:
        """Count a reload that was requested or that changed something."""
        self.reloads.labels("refused" if refused else "done").inc()

    def record_shadow_list(self, shadow: str, same_best: bool, pairs_alike: float, seconds: float) -> None:
        """Record a list that the shadow also scored; see ``Agreement`` for the arguments."""
        self.shadow_lists.labels("compared").inc()
        self.shadow_same_best.labels(shadow).inc(same_best)
        self.shadow_pairs_alike.labels(shadow).observe(pairs_alike)
        self.shadow_seconds.labels(shadow).observe(seconds)

    def record_refused_list(self, model: str, error: Exception) -> None:
        """Record a list that was answered with an error."""
        self.lists.labels(model, error_kind(error).code.name).inc()

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"rescorer_{name}_total", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"rescorer_{name}", help_text, labels, registry=self.registry)

    def _times(self, name: str, help_text: str, *labels: str) -> Histogram:
        return Histogram(f"rescorer_{name}", help_text, labels, buckets=SECONDS, registry=self.registry)

    def _sizes(self, name: str, help_text: str, bounds: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"rescorer_{name}", help_text, labels, buckets=bounds, registry=self.registry)


class _RefreshCollector(Collector):
    """A collector without samples that runs a function before the other collectors."""

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
