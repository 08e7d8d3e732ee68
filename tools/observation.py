"""Observe a server under test: its processes, how they grow, and the errors in its JSON log.

Linux only: reads ``/proc``.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import grpc
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from rescorer.bench.load import process_tree, rss_bytes
from rescorer.errors import DeadlineExceeded, ServiceError

WARM_UP_SHARE = 0.2
"""Share of a run that is ignored as warm-up, while caches fill and the heap grows to its usual size."""
MIN_SLOPE_SAMPLES = 3
MAX_LINE_CHARACTERS = 500
"""Log lines are cut to this length."""
MAX_QUOTED_LINES = 5
READ_TIMEOUT_S = 5.0


def find_workers(pid: int) -> list[int]:
    """List the ids of the worker processes of a server."""
    return [
        child for child in process_tree(pid)[1:] if b"rescorer.service.workers" in read_command_line(child)
    ]


def read_command_line(pid: int) -> bytes:
    """Read the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def read_metrics(port: int) -> dict[str, float]:
    """Read the metrics of a server on this machine: the sum of the samples of each, by name without prefix.

    Raises:
        OSError: the port cannot be read.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=READ_TIMEOUT_S) as response:
        families = text_string_to_metric_families(response.read().decode("utf-8"))
    sums: dict[str, float] = defaultdict(float)
    for sample in chain.from_iterable(family.samples for family in families):
        sums[sample.name.removeprefix("rescorer_")] += sample.value
    return sums


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Resources of one process at one time."""

    process: str
    """``server``, ``worker`` or ``child``."""
    rss_mb: float
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """Growth of the resources of a server's processes after the warm-up."""

    seconds: float
    """Time from the end of the warm-up to the end of the run."""
    rss_mb_begin: float
    """Memory of all processes together at the end of the warm-up."""
    rss_mb_end: float
    rss_mb_max: float
    rss_mb_an_hour: float
    """Slope of the regression line through all samples after the warm-up."""
    rss_mb_an_hour_last_half: float
    """Slope in the second half of these samples, which is smaller if memory approaches a limit."""
    begin: tuple[ProcessUsage, ...]
    """Resources per process at the end of the warm-up."""
    end: tuple[ProcessUsage, ...]

    @property
    def descriptors(self) -> int:
        """Growth of the number of file descriptors."""
        return sum(usage.descriptors for usage in self.end) - sum(usage.descriptors for usage in self.begin)

    @property
    def threads(self) -> int:
        """Growth of the number of threads."""
        return sum(usage.threads for usage in self.end) - sum(usage.threads for usage in self.begin)


class GrowthMonitor:
    """Context manager that samples the resources of a process and its children.

    Args:
        interval_s: time between samples.
    """

    def __init__(self, pid: int, interval_s: float = 1.0) -> None:
        self._pid, self._interval_s = pid, interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take_samples, daemon=True)
        self._samples: list[tuple[float, tuple[ProcessUsage, ...]]] = []

    def __enter__(self) -> GrowthMonitor:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def report(self) -> GrowthReport:
        """Summarise the samples taken so far."""
        samples = self._samples[int(WARM_UP_SHARE * len(self._samples)) :]
        times_s = np.array([time_s for time_s, _ in samples])  # (S,)
        rss_mb = np.array([sum(usage.rss_mb for usage in usages) for _, usages in samples])  # (S,)
        half = len(samples) // 2
        return GrowthReport(
            seconds=float(times_s[-1] - times_s[0]),
            rss_mb_begin=float(rss_mb[0]),
            rss_mb_end=float(rss_mb[-1]),
            rss_mb_max=float(rss_mb.max()),
            rss_mb_an_hour=slope(times_s, rss_mb) * 3600,
            rss_mb_an_hour_last_half=slope(times_s[half:], rss_mb[half:]) * 3600,
            begin=samples[0][1],
            end=samples[-1][1],
        )

    def _take_samples(self) -> None:
        while True:
            self._samples.append((time.monotonic(), measure_processes(self._pid)))
            if self._stop.wait(self._interval_s):
                self._samples.append((time.monotonic(), measure_processes(self._pid)))
                return


def slope(xs: np.ndarray, ys: np.ndarray) -> float:
    """Compute the slope of the least-squares line; 0 if there are too few points.

    >>> slope(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    2.0
    """
    centred = xs - xs.mean()  # (S,)
    if len(xs) < MIN_SLOPE_SAMPLES or not centred.any():
        return 0.0
    return float(centred @ ys / (centred @ centred))


def measure_processes(pid: int) -> tuple[ProcessUsage, ...]:
    """Measure a server and its children, except processes that end meanwhile."""
    workers = find_workers(pid)
    usages = []
    for member in process_tree(pid):
        try:
            descriptors = len(list(Path(f"/proc/{member}/fd").iterdir()))
            threads = len(list(Path(f"/proc/{member}/task").iterdir()))
        except OSError:
            continue
        process = "server" if member == pid else "worker" if member in workers else "child"
        usages.append(ProcessUsage(process, rss_bytes(member) / 1e6, descriptors, threads))
    return tuple(usages)


@contextmanager
def explain_errors(log: Path, limit_s: float) -> Iterator[None]:
    """Turn errors of a run into errors that quote the last errors in the server's log.

    Raises:
        DeadlineExceeded: the run takes longer than ``limit_s``.
        ServiceError: the run fails in any other way.
    """
    try:
        yield
    except TimeoutError:
        raise DeadlineExceeded(f"the run takes longer than {limit_s:g} s") from None
    except (OSError, grpc.RpcError, ServiceError) as error:
        logged = " | ".join(read_logged_errors(log)[-MAX_QUOTED_LINES:])
        raise ServiceError(f"the run failed: {error!r}; last errors in the server's log: {logged}") from None


def read_logged_errors(log: Path) -> list[str]:
    """Read the lines of a log that report errors of the server, including tracebacks."""
    found = []
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                level = json.loads(line).get("level")
            except (ValueError, AttributeError):  # not written by the server, but for example by gRPC
                level = "error" if line.startswith("Traceback") else ""
            if level in ("error", "critical"):
                found.append(line.strip()[:MAX_LINE_CHARACTERS])
    return found


def read_metrics_port(log: Path) -> int:
    """Find the metrics port of the server that writes this log."""
    with log.open(encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines if '"metrics"' in line]
    return int(next(event["port"] for event in events if event["event"] == "metrics"))
