"""Owns what the C library does with memory that tensors free: it stays with the process, unless told."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of glibc's mallopt(3)."""


def keep_freed_memory() -> bool:
    """Makes malloc keep what is freed for the next step, for the whole process; False where it is not glibc.

    By default the memory of every large tensor goes back to the system and comes again, page by page and
    zeroed, a step later: a fifth of the time of training a small network, most of that of the gradient of a
    large embedding, and a third of the time of scoring with one. The heap settles within some steps; the
    process then never shrinks below its peak. Commands say so for themselves; who uses the library decides.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library, such as musl
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def give_back_freed_memory() -> bool:
    """Hands the system what is free now, once, also after ``keep_freed_memory``; False where it is not glibc.

    For after what needs much memory and is rare: reading a model takes several times what it is in the end.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:  # another C library, such as musl
        return False
    return bool(trim(0))
