"""Owns what of the machine this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Processor cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
