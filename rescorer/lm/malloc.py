"""Tune how glibc's malloc handles the memory that tensors free."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's mallopt(3)."""


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory for reuse, in the whole process.

    By default the memory of every large tensor is returned to the system; one step later it is mapped and
    zeroed again, page by page. That takes a fifth of the time of training a small network, most of the time
    of computing a large embedding's gradient, and a third of the time of scoring with a small network. The
    heap settles within a few steps; after that the process never shrinks below its peak. The commands of this
    package call this function; programs that use the library may call it if they want the same effect.

    Returns:
        False if the C library is not glibc.
    """
    return _call_glibc("mallopt", M_MMAP_MAX, 0) and _call_glibc("mallopt", M_TRIM_THRESHOLD, -1)


def share_freed_memory() -> bool:
    """Make all threads allocate from two heaps, in the whole process; call it before threads are started.

    By default every thread has its own heap, up to eight per core, and a thread cannot reuse memory that
    another one has freed. The memory of a server whose threads take turns, as gRPC's do, would therefore keep
    growing.

    Returns:
        False if the C library is not glibc.
    """
    return _call_glibc("mallopt", M_ARENA_MAX, 2)


def release_freed_memory() -> bool:
    """Return currently free memory to the system once, even after ``keep_freed_memory``.

    Call it after rare steps with a high peak: loading a model takes several times its final size.

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
