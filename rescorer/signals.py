"""Handle signals: SIGTERM and Ctrl-C end a program, even the first process of a container; SIGHUP does not.

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
"""Time that a program may take to clean up after SIGTERM or Ctrl-C. Container engines kill it after 10 s."""
REPEAT_S = 0.2
"""Interval at which a program that should stop is checked: if it is not cleaning up, it is stopped again."""
STOP_SIGNALS = signal.SIGTERM, signal.SIGINT
GROUP_SIGNALS = *STOP_SIGNALS, signal.SIGHUP
"""Signals that reach all processes of a group, for example when a terminal closes."""

_exit: SystemExit | None = None  # the exception that stops this program
_is_over = False  # whether it has unwound the program


@contextmanager
def handle_signals() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end this program with the exit status 128 + signal, and ignore SIGHUP.

    The first signal raises SystemExit, so that temporary files are removed and child processes are ended;
    later ones do not interrupt this. If the exception is lost, as in a destructor or in a library that
    catches everything, it is raised again. If the program still runs after ``CLEANUP_S``, for example because
    a thread is busy, it ends without further cleanup. Child processes inherit that SIGHUP is ignored. Ctrl-C
    stays ignored if the caller ignores it, as shells do for background jobs.
    """
    global _is_over
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)  # the last one: a program that handles it handles all
    try:
        yield
    except BaseException:
        if _exit is None:
            raise
    if _exit is not None:
        _is_over = True
        sys.exit(_exit.code)  # some libraries turn the exception into another one, or lose it


def _stop(number: int, _: object) -> None:
    global _exit
    if _exit is None:
        _exit = SystemExit(128 + number)
        sys.unraisablehook = _report_unraisable
        # threading.Thread would take locks that this thread may hold
        _thread.start_new_thread(_insist, (_thread.get_ident(), number))
    if not _is_over and not _is_handled(_exit):
        raise _exit


def _is_handled(error: BaseException) -> bool:
    """Whether this thread runs ``except`` or ``finally`` blocks because of an exception."""
    current = sys.exception()
    while current is not None and current is not error:
        current = current.__context__
    return current is not None


def _report_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Print an exception that cannot be raised, as in a destructor, unless it is a stop: that is repeated."""
    if unraisable.exc_value is None or unraisable.exc_value is not _exit:
        sys.__unraisablehook__(unraisable)


def _insist(thread: int, number: int) -> None:
    """Send the signal to the main thread again and again, and end the program after ``CLEANUP_S``."""
    end = time.monotonic() + CLEANUP_S
    while time.monotonic() < end:
        time.sleep(REPEAT_S)
        signal.pthread_kill(thread, number)
    os._exit(128 + number)


class Stopped(BaseException):
    """Work ends early because a stop was requested while stops were held; see ``hold_stops``."""


class HeldStop:
    """A stop that may have been requested while stops are held."""

    def __init__(self) -> None:
        self.number = 0
        """The first signal that requested it; 0: none did."""

    def check(self) -> None:
        """Raise ``Stopped`` if a stop was requested."""
        if self.number:
            raise Stopped


@contextmanager
def hold_stops() -> Iterator[HeldStop]:
    """Within this context, SIGTERM and Ctrl-C only request a stop. It takes effect at the end of the context,
    also if that ends with an error.

    For work that must not be interrupted at just any moment, such as the steps of a training: it checks
    between steps whether a stop was requested, saves what it has done, and leaves the context with
    ``Stopped``. Outside the main thread, which alone receives signals, nothing is held.
    """
    held = HeldStop()

    def hold(number: int, _: object) -> None:
        held.number = held.number or number

    handlers = {int(number): signal.getsignal(number) for number in STOP_SIGNALS}
    keep = signal.SIG_IGN, None  # None: a handler that Python did not install, and could not restore
    former = {number: handler for number, handler in handlers.items() if handler not in keep}
    try:
        for number in former:
            signal.signal(number, hold)
    except ValueError:  # this is not the main thread
        former = {}
    try:
        yield held
    except Stopped:
        held.number = held.number or signal.SIGTERM
    finally:
        for number in former:
            signal.signal(number, former[number])
        if held.number:
            handler = former.get(held.number)
            handler(held.number, None) if callable(handler) else signal.raise_signal(held.number)


@contextmanager
def shield_children() -> Iterator[None]:
    """Protect child processes that start in the ``with`` block from signals to the process group.

    The children inherit that the signals are blocked, until they call one of the next two functions. Signals
    that reach this process in the block are handled after it. Blocks may overlap, as those of coroutines do.
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


def obey_only_sigterm() -> None:
    """Ignore other ``GROUP_SIGNALS``, and clean up after SIGTERM, in a child process that its parent ends."""
    for number in GROUP_SIGNALS:
        signal.signal(number, _stop if number == signal.SIGTERM else signal.SIG_IGN)
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
        # None: Python did not install the former handler, and cannot restore it
        if handler is not None and signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)
