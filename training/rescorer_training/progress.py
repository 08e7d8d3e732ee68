"""Report the progress of long computations, end processes cleanly, and define fields that become options.

As with logging, library code only reports progress; the program that runs it installs a display. Without one,
reports go nowhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import field
from typing import Any, Protocol


def option(default: Any, help: str, *flags: str, metavar: str | None = None, min: float | None = None) -> Any:
    """Define a field from which ``rescorer.terminal.options`` makes an option of a command.

    Args:
        flags: option names, if they differ from the field's name: ``--embedding``, ``--tied/--untied``.
        min: smallest value.
    """
    return field(default=default, metadata={"help": help, "flags": flags, "metavar": metavar, "min": min})


@contextmanager
def end_without_finalisation() -> Iterator[None]:
    """End the process after the block, without finalising the interpreter, if ``torchrun`` started it.

    Gloo's threads may still be releasing tensors while Python is finalised. They then abort the process
    (``terminate called without an active exception``, pytorch/pytorch#179291), and ``torchrun`` takes a
    training that has succeeded for one that failed.
    """
    status, is_worker = 0, "TORCHELASTIC_RUN_ID" in os.environ
    try:
        yield
    except SystemExit as end:
        if not (end.code is None or isinstance(end.code, int)):
            raise  # a message, which the interpreter prints
        status = end.code or 0
        if not is_worker:
            raise
    if is_worker:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
                stream.flush()
        os._exit(status)


class ProgressTask(Protocol):
    """One computation that reports how far it is."""

    def advance(self, amount: int = 1) -> None:
        """Report ``amount`` more units of work done."""

    def set_note(self, note: str) -> None:
        """Show a short text, such as the current value of an objective, next to the progress."""


Display = Callable[[str, str, int | None], AbstractContextManager[ProgressTask]]
"""Opens the display of one task, given its description, the plural of its unit, and its total if known."""


class _SilentTask:
    """A task without a display."""

    def advance(self, amount: int = 1) -> None:
        pass

    def set_note(self, note: str) -> None:
        pass


@contextmanager
def _show_nothing(description: str, unit: str, total: int | None) -> Iterator[ProgressTask]:
    yield _SilentTask()


_display: Display = _show_nothing


def install_display(display: Display) -> None:
    """Use ``display`` for all tasks that start after this call."""
    global _display
    _display = display


def track(description: str, unit: str, total: int | None = None) -> AbstractContextManager[ProgressTask]:
    """Start a task; an empty description keeps it silent.

    Args:
        unit: what ``advance`` counts, in the plural: ``"lines"``.
        total: number of units in the whole task; None if unknown.
    """
    display = _display if description else _show_nothing
    return display(description, unit, total)
