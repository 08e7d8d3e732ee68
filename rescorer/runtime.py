"""Resources of this process: its cores, its cache folder, the time and pauses of its work, threads, memory.

Code marks its phases with ``phase(...)``; the marks cost next to nothing unless a ``Stopwatch`` is running.
Phases can be nested. Time spent in an inner phase does not count towards the outer one, so the times of all
phases add up to the total time.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TypeVar

QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
"""Files with the CPU quota of a control group (Linux cgroups versions 2 and 1). An example of ``cpu.max`` is
``200000 100000``: 200,000 µs of CPU time per period of 100,000 µs, that is two cores. ``max``, or ``-1`` in
version 1, stands for no quota."""

USUAL_CPU_GROUPS = ("sys/fs/cgroup", "sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")
"""Where containers see their own control group."""

GROUP = re.compile(r"\d+:(?P<controllers>[^:]*):(?P<group>/.*)")
"""A line of ``/proc/self/cgroup``: the group of this process for some controllers, or for all (version 2)."""

MOUNT = re.compile(r"(?:\S+ ){3}(?P<top>/\S*) /(?P<folder>\S*) .* - (?P<kind>cgroup2?) .*")
"""A line of ``/proc/self/mountinfo`` about control groups: ``folder`` shows ``top`` and the groups in it."""


def count_cpus(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use: at most its smallest CPU quota, rounded up.

    Args:
        root: folder that contains ``proc`` and ``sys``.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    count = len(cores)
    for folder, names in product(_cpu_groups(root), QUOTA_FILES):
        with suppress(OSError, ValueError):  # no such file, or the quota is "max"
            words = (word for name in names for word in (folder / name).read_text("ascii").split())
            allowed, period = map(int, words)
            if allowed > 0 and period > 0:
                count = min(count, -(-allowed // period))
    return count


def _cpu_groups(root: Path) -> set[Path]:
    """Return the folders of the control groups that may limit this process: its own and those around them."""
    own: dict[str, PurePosixPath] = {}  # kind of file system: group
    for controllers, group in _match_lines(GROUP, root / "proc/self/cgroup"):
        if not controllers or "cpu" in controllers.split(","):
            own["cgroup" if controllers else "cgroup2"] = PurePosixPath(group)
    folders = {root / folder for folder in USUAL_CPU_GROUPS}
    for top, folder, kind in _match_lines(MOUNT, root / "proc/self/mountinfo"):
        mine, top = own.get(kind), _unescape(top)
        if mine and mine.is_relative_to(top) and ".." not in mine.parts:  # else it is not in this folder
            inner = mine.relative_to(top)
            folders.update(root / _unescape(folder) / around for around in (inner, *inner.parents))
    return folders


def _match_lines(pattern: re.Pattern[str], file: Path) -> Iterator[tuple[str, ...]]:
    """Yield the groups of the lines that match a pattern; none if the file cannot be read."""
    with suppress(OSError):
        for match in filter(None, map(pattern.fullmatch, os.fsdecode(file.read_bytes()).split("\n"))):
            yield match.groups()


def _unescape(field: str) -> str:
    """Decode the octal escapes of blanks and backslashes in ``/proc/self/mountinfo``."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)


MAX_NEW_OBJECTS = 50_000
"""Number of new objects after which Python looks for cycles of garbage; its own number is 700 to 2,000."""


def collect_rarely() -> None:
    """Let Python look for cycles of garbage less often.

    Modules, lists and answers are many objects, but no cycles. Looking for them takes a sixth of the start of
    a command, and a twentieth of rescoring without networks.
    """
    gc.set_threshold(MAX_NEW_OBJECTS, *gc.get_threshold()[1:])


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


NOT_TIMED = nullcontext()


def phase(name: Phase) -> AbstractContextManager[None]:
    """Mark the ``with`` block as part of a phase."""
    stopwatch = _stopwatch.get()
    return NOT_TIMED if stopwatch is None else stopwatch.inside(name)


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


def pause() -> None:
    """End a bounded step of long work, such as a level of a trie, a chunk, or a hypothesis of a list.

    The code that started the work may act here: abandon it by raising an error, or use the thread for
    something short. Nothing happens unless ``pausing`` is in effect, at next to no cost.
    """
    act = _on_pause.get()
    if act is not None:
        act()


@contextmanager
def pausing(act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` in each ``pause`` of the current thread while the ``with`` block runs."""
    token = _on_pause.set(act)
    try:
        yield
    finally:
        _on_pause.reset(token)


_on_pause: ContextVar[Callable[[], object] | None] = ContextVar("on_pause", default=None)


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
