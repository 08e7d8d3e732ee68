"""Resources of this process: its cores, its cache folder, the time of its phases, its threads and memory.

Code marks its phases with ``phase(...)``; the marks cost next to nothing unless a ``Stopwatch`` is running.
Phases can be nested. Time spent in an inner phase does not count towards the outer one, so the times of all
phases add up to the total time.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
"""File with the CPU quota of a container (Linux cgroups version 2). An example is ``200000 100000``: 200,000
µs of CPU time per period of 100,000 µs, that is two cores; ``max`` stands for no quota."""


def count_cpus(quota_file: Path = CPU_QUOTA_FILE) -> int:
    """Return the number of cores that this process may use: at most a container's quota, rounded up."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    count = len(cores)
    with suppress(OSError, ValueError):  # not in a container, or the quota is "max"
        allowed, period = map(int, quota_file.read_text(encoding="ascii").split())
        count = min(count, max(1, math.ceil(allowed / period)))
    return count


def user_cache_folder(name: str) -> Path:
    """Return the folder ``rescorer/NAME`` in the user's cache folder, as XDG specifies it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "rescorer" / name


Item = TypeVar("Item")


class Phase(StrEnum):
    """Phases of rescoring, in processing order."""

    PARSE = "parse"
    TEXT = "normalise and encode"
    TRIE = "trie"
    NGRAM = "n-gram"
    NETWORK = "network"
    OUTPUT = "output layer"
    RANK = "combine and rank"
    WRITE = "write"
    OTHER = "other"  # time outside all other phases


class Stopwatch:
    """Accumulates seconds per phase.

    Args:
        clock: returns seconds since any fixed moment.
        synchronise: waits for asynchronous work, such as a GPU's, before the clock is read.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, synchronise: Callable[[], object] = lambda: None
    ) -> None:
        self.seconds = dict.fromkeys(Phase, 0.0)
        self._clock, self._synchronise = clock, synchronise
        self._open: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the phases of the current thread while the ``with`` block runs."""
        token = _stopwatch.set(self)
        try:
            with self.inside(Phase.OTHER):
                yield
        finally:
            _stopwatch.reset(token)

    @contextmanager
    def inside(self, phase: Phase) -> Iterator[None]:
        """Count the time inside the ``with`` block towards ``phase``."""
        self._split()
        self._open.append(phase)
        try:
            yield
        finally:
            self._split()
            self._open.pop()

    def _split(self) -> None:
        """Add the time since the last call to the innermost phase."""
        self._synchronise()
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


_stopwatch: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Mark the ``with`` block as part of a phase."""
    stopwatch = _stopwatch.get()
    if stopwatch is None:
        yield
    else:
        with stopwatch.inside(name):
            yield


def time_items(items: Iterable[Item], name: Phase) -> Iterator[Item]:
    """Yield the items; producing them counts towards a phase, consuming them does not."""
    iterator = iter(items)
    while True:
        with phase(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


@dataclass(slots=True)
class ContextWords:
    """Count of the words in the distinct contexts of a batch, added up over the networks."""

    needed: int = 0
    recalled: int = 0  # those of ``needed`` that were not read, because the state after them was cached

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Add the counts of all networks that the current thread runs while the ``with`` block runs."""
        token = _counts.set(self)
        try:
            yield
        finally:
            _counts.reset(token)


_counts: ContextVar[ContextWords | None] = ContextVar("context_words", default=None)


def count_context_words(needed: int, recalled: int) -> None:
    """Add the words that a network needed and recalled to the active ``ContextWords``, if there is one."""
    counts = _counts.get()
    if counts is not None:
        counts.needed += needed
        counts.recalled += recalled


_chosen = 0


def use_threads(count: int) -> None:
    """Set the number of torch's CPU threads in this process; 0 keeps torch's default, one per core.

    The number takes effect in ``apply_threads``, which is called when a network is loaded. torch is not
    imported here, because its import takes seconds and n-grams do not need it.
    """
    global _chosen
    _chosen = count
    if "torch" in sys.modules:
        apply_threads()


def apply_threads() -> None:
    """Let torch use the number of threads that was last given to ``use_threads``, if any was."""
    if _chosen:
        import torch

        torch.set_num_threads(_chosen)


M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # parameters of glibc's mallopt(3)


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory for reuse, in the whole process.

    By default the memory of every large tensor is returned to the system; one step later it is mapped and
    zeroed again, page by page. That takes a fifth of the time of training a small network, most of the time
    of computing a large embedding's gradient, and a third of the time of scoring with a small network. With
    this call, the heap stops growing after a few steps, but never shrinks below its peak. The commands of
    this package call this function; programs that use the library may call it if they want the same effect.

    Returns:
        False if the C library is not glibc.
    """
    return _call_glibc("mallopt", M_MMAP_MAX, 0) and _call_glibc("mallopt", M_TRIM_THRESHOLD, -1)


def share_freed_memory() -> bool:
    """Make all threads of the process allocate from the same two heaps. Call it before threads are started.

    By default every thread has its own heap, up to eight per core, and a thread cannot reuse memory that
    another one has freed. The memory of a server whose threads take turns, as gRPC's do, would therefore keep
    growing.

    Returns:
        False if the C library is not glibc.
    """
    return _call_glibc("mallopt", M_ARENA_MAX, 2)


def release_freed_memory() -> bool:
    """Return currently free memory to the system once, even after ``keep_freed_memory``.

    Call it after rare steps with a high peak, such as loading a model, which takes several times its final
    size.

    Returns:
        False if the C library is not glibc, or there was nothing to release.
    """
    return _call_glibc("malloc_trim", 0)


def _call_glibc(function: str, *arguments: int) -> bool:
    """Call a glibc function that reports success as non-zero; False if the C library lacks it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(getattr(ctypes.CDLL(None), function)(*arguments))
    except AttributeError:  # another C library, such as musl
        return False
