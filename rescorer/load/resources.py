"""Measure CPU time and memory of a process and its children. Linux only: reads ``/proc``."""

from __future__ import annotations

import os
import threading
from pathlib import Path

SAMPLING_INTERVAL_S = 0.2
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ResourceMonitor:
    """Context manager that measures the CPU time and peak memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_memory, daemon=True)
        self.cpu_s = 0.0
        self.max_rss_bytes = 0

    def __enter__(self) -> ResourceMonitor:
        self._start_cpu_s = self._total_cpu_s()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu_s = self._total_cpu_s() - self._start_cpu_s

    def _total_cpu_s(self) -> float:
        return sum(cpu_time_s(pid) for pid in process_tree(self._pid))

    def _sample_memory(self) -> None:
        while True:
            total_bytes = sum(rss_bytes(pid) for pid in process_tree(self._pid))
            self.max_rss_bytes = max(self.max_rss_bytes, total_bytes)
            if self._stop.wait(SAMPLING_INTERVAL_S):
                return


def process_tree(pid: int) -> list[int]:
    """List a process and its descendants, each after its parent."""
    children_files = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        children = [int(child) for file in children_files for child in file.read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(descendant for child in children for descendant in process_tree(child))]


def cpu_time_s(pid: int) -> float:
    """Read the user and system time of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


def rss_bytes(pid: int) -> int:
    """Read the resident memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
