"""Handle signals: SIGTERM ends a program, even if it is the first process of a container; SIGHUP does not.

For the first process of a container, the kernel drops signals that have no handler. So a program calls
``handle_signals`` before it imports anything that takes long. This module itself imports little.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

TERMINATED_STATUS = 128 + signal.SIGTERM  # exit status by which shells report an end by SIGTERM
CLEANUP_S = 8.0
"""Time that a program may take to clean up after SIGTERM. Container engines kill it after 10 s."""
GROUP_SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
"""Signals that reach all processes of a group, for example when a terminal closes."""

_was_terminated = False


@contextmanager
def handle_signals() -> Iterator[None]:
    """Let SIGTERM end this program as Ctrl-C does, with the exit status 143, and ignore SIGHUP.

    SIGTERM raises SystemExit, so that temporary files are removed and child processes are ended. If the
    program still runs after ``CLEANUP_S``, for example because a thread is busy, it ends without further
    cleanup. Child processes inherit that SIGHUP is ignored.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except BaseException:
        if _was_terminated:  # some libraries turn SystemExit into another error
            sys.exit(TERMINATED_STATUS)
        raise


def _terminate(*_: object) -> None:
    global _was_terminated
    _was_terminated = True
    _thread.start_new_thread(_end_late, ())  # threading.Thread would take locks that this thread may hold
    sys.exit(TERMINATED_STATUS)


def _end_late() -> None:
    time.sleep(CLEANUP_S)
    os._exit(TERMINATED_STATUS)


@contextmanager
def shield_children() -> Iterator[None]:
    """Protect child processes that start in the ``with`` block from signals to the process group.

    The children inherit that the signals are blocked, until they call ``ignore_group_signals``. Signals that
    reach this process in the block are handled after it. Blocks may overlap, as those of coroutines do.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


def ignore_group_signals() -> None:
    """Ignore ``GROUP_SIGNALS``, in a child process that ends when its parent asks it to."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


@contextmanager
def keep_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM after the ``with`` block, for calls that install another handler."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        sys.exit(TERMINATED_STATUS)
    finally:
        if signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)
