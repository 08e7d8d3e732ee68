"""Sample processor time and memory of all child processes. Linux only: reads ``/proc``."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from statistics import median

from rescorer.load.resources import cpu_time_s, process_tree, rss_bytes
from tools.support.processes import read_command_line

INTERVAL_S = 0.2
WORKER_MARKS = (b"spawn_main", b"ray::ShardActor")
"""Parts of the command lines of processes that run shards. Ray's own agents are ``ray::`` processes, too."""
MB = 1e6


@dataclass(slots=True)
class Usage:
    """What a process has used."""

    command: bytes
    cpu_s: float = 0.0
    rss: list[float] = field(default_factory=list)
    """Memory in MB at each sample."""

    @property
    def growth_mb(self) -> float:
        """Median of the last third of the samples minus that of the first."""
        third = len(self.rss) // 3
        return median(self.rss[-third:]) - median(self.rss[:third]) if third else 0.0


def is_worker(command: bytes) -> bool:
    """Whether a process runs shards for another one, by its command line."""
    return any(mark in command for mark in WORKER_MARKS)


def find_workers(pid: int) -> list[int]:
    """List the processes below a process that run shards."""
    return [child for child in process_tree(pid)[1:] if is_worker(read_command_line(child))]


class ChildSampler:
    """Context manager that samples all descendants of this process, also those whose parents were killed.

    Of the processor time of a process, the part after its last sample is lost.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._usages: dict[int, Usage] = {}
        self.seconds = 0.0

    def __enter__(self) -> ChildSampler:
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.seconds = time.monotonic() - self._begin
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            for pid in {*process_tree(os.getpid())[1:], *self._usages}:
                self._sample(pid)

    def _sample(self, pid: int) -> None:
        rss = rss_bytes(pid) / MB
        if not rss:  # it has ended
            return
        command = read_command_line(pid)  # one that was just forked has that of its parent, and Ray renames
        usage = self._usages.setdefault(pid, Usage(command))
        usage.command = command if is_worker(command) or not is_worker(usage.command) else usage.command
        usage.cpu_s = max(usage.cpu_s, cpu_time_s(pid))
        usage.rss.append(rss)

    @property
    def cpu_s(self) -> float:
        """Processor time of all processes."""
        return sum(usage.cpu_s for usage in self._usages.values())

    @property
    def rescoring(self) -> list[Usage]:
        """The processes that rescored: workers, or if there are none, all that were started."""
        usages = [usage for usage in self._usages.values() if usage.rss]
        return [usage for usage in usages if is_worker(usage.command)] or usages

    @property
    def peak_mb(self) -> float:
        """Largest memory of a process that rescored."""
        return max((max(usage.rss) for usage in self.rescoring), default=0.0)

    @property
    def growth_mb(self) -> float:
        """Growth of the process that rescored longest."""
        longest = max(self.rescoring, key=lambda usage: len(usage.rss), default=None)
        return longest.growth_mb if longest else 0.0
