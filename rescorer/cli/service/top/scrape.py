"""Read the Prometheus metrics of a running server and summarise what happened between two readings."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException

from prometheus_client.parser import text_string_to_metric_families

from rescorer.errors import Unavailable

READ_TIMEOUT_S = 5.0
PREFIX = "rescorer_"
HTTP2_SETTINGS = "\x04"
"""Type of the first frame that an HTTP/2 server sends, after the three bytes of the frame's length."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of times in milliseconds; None if nothing was measured."""

    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """Activity of one model."""

    lists_per_s: float
    best_changed: float | None
    """Share of lists whose best hypothesis was not the first one; None without lists."""
    unknown_words: float | None
    """Share of out-of-vocabulary words; None without words."""
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Activity of a server between two readings of its metrics, and its state at the second one."""

    seconds: float
    """Time between the readings."""
    ready: bool
    lists_per_s: float
    calls_per_s: Mapping[str, float]
    """Calls per second by status code."""
    call_ms: Quantiles
    queue_ms: Quantiles
    compute_ms: Quantiles
    """Time to score a batch."""
    phase_shares: Mapping[str, float]
    """Seconds spent in each phase per second of elapsed time."""
    batch_lists: float | None
    """Mean number of lists per batch; None without batches."""
    batch_edges: float | None
    """Mean number of trie edges per batch."""
    distinct: float | None
    """Share of the words whose scores had to be computed; the others were shared or cached."""
    waiting: int
    """Number of work items in the queue."""
    in_flight_lists: int
    in_flight_tokens: int
    streams: int
    workers: int
    restarts: int
    """Number of worker restarts since the server started."""
    memory_bytes: float
    """Resident memory of the front ends and workers together."""
    models: Mapping[str, ModelSnapshot]


class Scrape:
    """One reading of a server's metrics.

    Args:
        text: Metrics in Prometheus's text format.
        time_s: Time of the reading, in seconds since any fixed point.
    """

    def __init__(self, text: str, time_s: float) -> None:
        self.time_s = time_s
        self._samples = {
            (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def sum(self, name: str, **labels: str) -> float:
        """Sum all samples of a metric that have these labels."""
        return sum(value for _, value in self.samples(name, **labels))

    def sum_by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sum the samples of a metric that have these labels, by the value of another label."""
        sums: dict[str, float] = {}
        for sample_labels, value in self.samples(name, **labels):
            sums[sample_labels[label]] = sums.get(sample_labels[label], 0.0) + value
        return sums

    def samples(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Iterate over the labels and values of all samples of a metric that have these labels."""
        for (sample_name, label_pairs), value in self._samples.items():
            if sample_name == name and labels.items() <= dict(label_pairs).items():
                yield dict(label_pairs), value


def read_metrics(address: str) -> Scrape:
    """Read the metrics of a server.

    Args:
        address: ``host:port`` or a complete URL.

    Raises:
        Unavailable: If the address cannot be read or does not serve a rescorer's metrics.
    """
    url = address if "://" in address else f"http://{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=READ_TIMEOUT_S) as response:
            text = response.read().decode("utf-8")
            scrape = Scrape(text, time.monotonic())
    except (OSError, HTTPException, ValueError) as error:
        # Not isinstance: the subclass RemoteDisconnected carries a message instead of the received line.
        reason = (
            describe_bad_status_line(str(error)) if type(error) is BadStatusLine else describe_failure(error)
        )
        raise Unavailable(f"{url}: cannot read metrics: {reason}") from None
    if PREFIX not in text:
        raise Unavailable(f"{url}: expected metrics of a rescorer, got {text[:40]!r}")
    return scrape


def describe_failure(error: Exception) -> str:
    """Return why the address could not be read, and what to do if nothing listens there."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return f"{cause.strerror.lower()}; is the server running, with this --metrics-port?"
    return str(error)


def describe_bad_status_line(line: str) -> str:
    """Describe a response that is not HTTP/1, from its first line.

    >>> describe_bad_status_line("SSH-2.0-OpenSSH_9.2")
    "expected HTTP, got 'SSH-2.0-OpenSSH_9.2'"
    """
    if line[3:4] == HTTP2_SETTINGS:
        return "expected HTTP/1, got HTTP/2; this may be the gRPC port: use the port given by --metrics-port"
    return f"expected HTTP, got {line[:40]!r}"


class Interval:
    """The time between two readings; increases are 0 if the server restarted in between."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self._before, self._after = before, after
        self.seconds = max(after.time_s - before.time_s, 1e-9)

    def increase(self, name: str, **labels: str) -> float:
        return max(0.0, self._after.sum(name, **labels) - self._before.sum(name, **labels))

    def rates(self, name: str, label: str) -> dict[str, float]:
        """Compute the increase per second by the value of a label; omit values that did not increase."""
        old = self._before.sum_by(name, label)
        new = self._after.sum_by(name, label)
        per_second = {key: (value - old.get(key, 0.0)) / self.seconds for key, value in new.items()}
        return {key: rate for key, rate in sorted(per_second.items()) if rate > 0}

    def quantiles_ms(self, name: str, **labels: str) -> Quantiles:
        """Estimate the quantiles of the values that a histogram of seconds received."""
        old = self._before.sum_by(f"{name}_bucket", "le", **labels)
        new = self._after.sum_by(f"{name}_bucket", "le", **labels)
        counts = {float(bound): count - old.get(bound, 0.0) for bound, count in new.items()}
        p50, p99 = (quantile(share, counts) for share in (0.5, 0.99))
        return Quantiles() if p50 is None or p99 is None else Quantiles(1e3 * p50, 1e3 * p99)


def compare(before: Scrape, after: Scrape) -> Snapshot:
    """Summarise what happened between two readings."""
    interval = Interval(before, after)
    increase = interval.increase
    return Snapshot(
        seconds=interval.seconds,
        ready=bool(after.sum("ready")),
        lists_per_s=increase("lists_total") / interval.seconds,
        calls_per_s=interval.rates("calls_total", "code"),
        call_ms=interval.quantiles_ms("call_seconds", method="Rescore"),
        queue_ms=interval.quantiles_ms("queue_seconds"),
        compute_ms=interval.quantiles_ms("batch_seconds"),
        phase_shares=interval.rates("phase_seconds_sum", "phase"),
        batch_lists=ratio(increase("batch_lists_sum"), increase("batch_lists_count")),
        batch_edges=ratio(increase("batch_edges_sum"), increase("batch_edges_count")),
        distinct=ratio(increase("trie_edges_total"), increase("tokens_total")),
        waiting=int(after.sum("queue_pieces")),
        in_flight_lists=int(after.sum("in_flight_lists")),
        in_flight_tokens=int(after.sum("in_flight_tokens")),
        streams=int(after.sum("streams")),
        workers=int(after.sum("workers_alive")),
        restarts=int(after.sum("worker_restarts_total")),
        memory_bytes=after.sum("process_resident_memory_bytes") + after.sum("worker_resident_memory_bytes"),
        models=compare_models(interval, after),
    )


def compare_models(interval: Interval, after: Scrape) -> dict[str, ModelSnapshot]:
    """Summarise the activity of each model by its label."""
    memory_bytes = {labels["model"]: value for labels, value in after.samples("model_memory_bytes")}
    increase = interval.increase
    return {
        model: ModelSnapshot(
            increase("lists_total", model=model) / interval.seconds,
            ratio(increase("lists_best_changed_total", model=model), increase("lists_total", model=model)),
            ratio(increase("unknown_words_total", model=model), increase("words_total", model=model)),
            memory_bytes.get(model, 0.0),
        )
        for model in sorted({*memory_bytes, *after.sum_by("lists_total", "model")})
    }


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def quantile(share: float, counts: Mapping[float, float]) -> float | None:
    """Estimate a quantile from a histogram as Prometheus does; None without values.

    Values are assumed to be spread evenly within each bucket.

    Args:
        share: Share of the values below the quantile, 0 to 1.
        counts: Number of values up to each bound, including the bound infinity.

    >>> quantile(0.5, {1.0: 2, 2.0: 4, float("inf"): 4}), quantile(0.75, {1.0: 2, 2.0: 4, float("inf"): 4})
    (1.0, 1.5)
    """
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    lower_bound = lower_count = 0.0
    for bound in bounds[:-1]:
        if counts[bound] >= share * total:
            position = (share * total - lower_count) / (counts[bound] - lower_count)
            return lower_bound + (bound - lower_bound) * position
        lower_bound, lower_count = bound, counts[bound]
    return lower_bound
