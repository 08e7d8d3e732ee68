"""Bound the memory and time of a block of a test, so that an attack on them fails instead of succeeding."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def bounded(memory_bytes: int, seconds: int) -> Iterator[None]:
    """Raise MemoryError beyond this much new memory, and TimeoutError after this much time."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
