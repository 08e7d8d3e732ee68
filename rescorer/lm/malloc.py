"""Owns what the C library does with memory that tensors free: it stays with the process, unless told."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Of glibc's mallopt(3)."""


def keep_freed_memory() -> bool:
    """Makes malloc keep what is freed for the next step, for the whole process; False where it is not glibc.

    By default the memory of every large tensor goes back to the system and comes again, page by page and
    zeroed, a step later: a fifth of the time of training a small network, most of that of the gradient of a
    large embedding, and a third of the time of scoring with one. The heap settles within some steps; the
    process then never shrinks below its peak. Commands say so for themselves; who uses the library decides.
    """
    return _told("mallopt", M_MMAP_MAX, 0) and _told("mallopt", M_TRIM_THRESHOLD, -1)


def share_freed_memory() -> bool:
    """Makes threads take memory from two heaps, for the whole process; False where it is not glibc.

    By default every thread has one of its own, up to eight a core, and what one has freed the others do not
    find: a server whose threads take turns, as gRPC's do, grows by that. To be said before there are threads.
    """
    return _told("mallopt", M_ARENA_MAX, 2)


def give_back_freed_memory() -> bool:
    """Hands the system what is free now, once, also after ``keep_freed_memory``; False where it is not glibc.

    For after what needs much memory and is rare: reading a model takes several times what it is in the end.
    """
    return _told("malloc_trim", 0)


def _told(function: str, *arguments: int) -> bool:
    """Whether glibc has that function of its own, and says that it has done it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(getattr(ctypes.CDLL(None), function)(*arguments))
    except AttributeError:  # another C library, such as musl
        return False
