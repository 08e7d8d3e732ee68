"""Owns what of the machine this process may use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Of a container, as Linux's cgroups (version 2) tell: microseconds of processor in so many, or ``max``."""


def cores(quota: Path = QUOTA) -> int:
    """Processor cores that this process may run on; of a container's quota as many as it fills."""
    here = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    count = len(here)
    with suppress(OSError, ValueError):  # no container, no quota ("max"), or told another way
        allowed, period = map(int, quota.read_text(encoding="ascii").split())
        count = min(count, max(1, math.ceil(allowed / period)))
    return count
