"""Count the CPU cores that this process may use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
"""CPU quota of a container (Linux cgroups version 2): microseconds of CPU time, or ``max``, per period."""


def count_cpus(quota_file: Path = CPU_QUOTA_FILE) -> int:
    """Return the number of cores this process may run on, limited by a container's quota (rounded up)."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    count = len(cores)
    with suppress(OSError, ValueError):  # not in a container, or the quota is "max"
        allowed, period = map(int, quota_file.read_text(encoding="ascii").split())
        count = min(count, max(1, math.ceil(allowed / period)))
    return count
