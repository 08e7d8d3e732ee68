"""Owns what the metrics of a running server say of it, read as Prometheus reads them and compared."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException

from prometheus_client.parser import text_string_to_metric_families

from rescorer.errors import Unavailable

READ_LIMIT_S = 5.0
PREFIX = "rescorer_"
HTTP2_SETTINGS = "\x04"
"""The type of the frame with which a server of HTTP/2 begins, after three bytes of its length."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of times, in milliseconds; None where nothing was measured."""

    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class ModelPicture:
    """What a model does."""

    lists_per_s: float
    best_changed: float | None
    """Share of its lists whose best hypothesis was not the first; None: it had no lists."""
    unknown_words: float | None
    """Share of words."""
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Picture:
    """What a server did between two readings, and its state at the second."""

    seconds: float
    ready: bool
    lists_per_s: float
    calls_per_s: Mapping[str, float]
    """By code."""
    call_ms: Quantiles
    queue_ms: Quantiles
    compute_ms: Quantiles
    """Of a batch."""
    phase_shares: Mapping[str, float]
    """Seconds a second, by phase."""
    batch_lists: float | None
    """In the mean, as are edges; None: there were no batches."""
    batch_edges: float | None
    distinct: float | None
    """Share of the words sent that had to be computed."""
    waiting: int
    in_flight_lists: int
    in_flight_tokens: int
    streams: int
    scorers: int
    restarts: int
    """Since the server began, of scorers."""
    memory_bytes: float
    """Of the front process and the scoring ones."""
    models: Mapping[str, ModelPicture]


class Scrape:
    """One reading.

    Args:
        text: as the server wrote it.
        at: when, in seconds of any origin.
    """

    def __init__(self, text: str, at: float) -> None:
        self.at = at
        self._samples = {
            (each.name.removeprefix(PREFIX), tuple(sorted(each.labels.items()))): each.value
            for family in text_string_to_metric_families(text)
            for each in family.samples
        }

    def sum(self, name: str, **labels: str) -> float:
        """Over all samples of the name that have these labels."""
        return sum(value for _, value in self.of(name, **labels))

    def of(self, name: str, **labels: str) -> Iterator[tuple[Mapping[str, str], float]]:
        for (known, pairs), value in self._samples.items():
            if known == name and labels.items() <= dict(pairs).items():
                yield dict(pairs), value

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums by the values of a label."""
        sums: dict[str, float] = {}
        for pairs, value in self.of(name, **labels):
            sums[pairs[label]] = sums.get(pairs[label], 0.0) + value
        return sums


def read(address: str) -> Scrape:
    """Reads the metrics at ``host:port``, or at a whole URL; raises Unavailable."""
    url = address if "://" in address else f"http://{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=READ_LIMIT_S) as answer:
            text = answer.read().decode("utf-8")
            scrape = Scrape(text, time.monotonic())
    except (OSError, HTTPException, ValueError) as fault:
        # Its subclass RemoteDisconnected has a message, no line.
        reason = found_instead(str(fault)) if type(fault) is BadStatusLine else str(fault)
        raise Unavailable(f"{url}: no metrics: {reason}") from None
    if PREFIX not in text:
        raise Unavailable(f"{url}: no metrics of a rescorer among those of {text[:40]!r}")
    return scrape


def found_instead(line: str) -> str:
    """What answers where no HTTP/1 does, from the first line of it.

    >>> found_instead("SSH-2.0-OpenSSH_9.2")
    "no HTTP: 'SSH-2.0-OpenSSH_9.2'"
    """
    if line[3:4] == HTTP2_SETTINGS:
        return "it speaks HTTP/2, as the port of gRPC does; the one of --metrics-port is another"
    return f"no HTTP: {line[:40]!r}"


def compare(before: Scrape, after: Scrape) -> Picture:
    """What happened in between; a server that began anew in between did nothing before."""
    seconds = max(after.at - before.at, 1e-9)

    def more(name: str, **labels: str) -> float:
        return max(0.0, after.sum(name, **labels) - before.sum(name, **labels))

    def rates(name: str, label: str) -> dict[str, float]:
        old = before.by(name, label)
        grown = {key: (value - old.get(key, 0.0)) / seconds for key, value in after.by(name, label).items()}
        return {key: value for key, value in sorted(grown.items()) if value > 0}

    def quantiles(name: str, **labels: str) -> Quantiles:
        old = before.by(f"{name}_bucket", "le", **labels)
        counts = {
            float(le): count - old.get(le, 0.0)
            for le, count in after.by(f"{name}_bucket", "le", **labels).items()
        }
        p50, p99 = (quantile(share, counts) for share in (0.5, 0.99))
        return Quantiles() if p50 is None or p99 is None else Quantiles(1e3 * p50, 1e3 * p99)

    memory = {labels["model"]: value for labels, value in after.of("model_memory_bytes")}
    models = {
        model: ModelPicture(
            more("lists_total", model=model) / seconds,
            ratio(more("lists_best_changed_total", model=model), more("lists_total", model=model)),
            ratio(more("unknown_words_total", model=model), more("words_total", model=model)),
            memory.get(model, 0.0),
        )
        for model in sorted({*memory, *after.by("lists_total", "model")})
    }
    return Picture(
        seconds=seconds,
        ready=bool(after.sum("ready")),
        lists_per_s=more("lists_total") / seconds,
        calls_per_s=rates("calls_total", "code"),
        call_ms=quantiles("call_seconds", method="Rescore"),
        queue_ms=quantiles("queue_seconds"),
        compute_ms=quantiles("batch_seconds"),
        phase_shares=rates("phase_seconds_sum", "phase"),
        batch_lists=ratio(more("batch_lists_sum"), more("batch_lists_count")),
        batch_edges=ratio(more("batch_edges_sum"), more("batch_edges_count")),
        distinct=ratio(more("trie_edges_total"), more("tokens_total")),
        waiting=int(after.sum("queue_pieces")),
        in_flight_lists=int(after.sum("in_flight_lists")),
        in_flight_tokens=int(after.sum("in_flight_tokens")),
        streams=int(after.sum("streams")),
        scorers=int(after.sum("scorers_alive")),
        restarts=int(after.sum("scorer_restarts_total")),
        memory_bytes=after.sum("process_resident_memory_bytes") + after.sum("scorer_resident_memory_bytes"),
        models=models,
    )


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def quantile(share: float, counts: Mapping[float, float]) -> float | None:
    """A quantile read from a histogram as Prometheus reads it, evenly spread in a bucket; None: no values.

    Args:
        counts: of values up to each bound, infinity among them.

    >>> quantile(0.5, {1.0: 2, 2.0: 4, float("inf"): 4}), quantile(0.75, {1.0: 2, 2.0: 4, float("inf"): 4})
    (1.0, 1.5)
    """
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    low = below = 0.0
    for bound in bounds[:-1]:
        if counts[bound] >= share * total:
            return low + (bound - low) * (share * total - below) / (counts[bound] - below)
        low, below = bound, counts[bound]
    return low
