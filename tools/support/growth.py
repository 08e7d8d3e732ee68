"""Measure how the memory, file descriptors and threads of a server grow during a run.

Linux only: reads ``/proc``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.load.resources import process_tree, rss_bytes
from tools.support.processes import find_workers

WARM_UP_SHARE = 0.2
"""Share of a run that is ignored as warm-up, while caches fill and the heap grows to its usual size."""
MIN_SLOPE_SAMPLES = 3


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
    """Slope in the second half of those samples; it is smaller if memory approaches a limit."""
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
        interval_s: Time between samples.
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
    """Measure a server and its children; skips processes that end meanwhile."""
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
