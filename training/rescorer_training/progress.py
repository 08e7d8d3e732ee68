"""Report the progress of long computations, end processes cleanly, and define fields that become options.

Progress works like logging: library code only reports how far it is, and the program that uses the library
installs a display, such as a bar on the terminal. Without a display, nothing is shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import field
from typing import Any


def option(default: Any, help: str, *flags: str, metavar: str | None = None, min: float | None = None) -> Any:
    """Define a dataclass field that ``rescorer.terminal.options`` turns into an option of a command.

    Args:
        flags: names of the option, such as ``--embedding`` or ``--tied/--untied``. By default, the name of
            the field is used.
        min: smallest value.
    """
    return field(default=default, metadata={"help": help, "flags": flags, "metavar": metavar, "min": min})


@contextmanager
def end_without_finalisation() -> Iterator[None]:
    """If ``torchrun`` started this process, end it after the block without finalising the interpreter.

    While Python is finalised, threads of gloo may still be releasing tensors and then abort the process
    (``terminate called without an active exception``, pytorch/pytorch#179291). ``torchrun`` would report a
    successful training as failed.
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


class ProgressTask:
    """One computation that reports how far it is. Displays override the methods; these show nothing."""

    def advance(self, amount: int = 1) -> None:
        """Report that ``amount`` more units of work are done."""

    def set_note(self, note: str) -> None:
        """Show a short text next to the progress, such as the current value of an objective."""


Display = Callable[[str, str, int | None], AbstractContextManager[ProgressTask]]
"""A function that opens the display of one task.

Its arguments are those of ``track``: a description, the name of a unit of work, and the total if it is known.
"""


def _show_nothing(description: str, unit: str, total: int | None) -> AbstractContextManager[ProgressTask]:
    return nullcontext(ProgressTask())


_display: Display = _show_nothing


def install_display(display: Display) -> None:
    """Use ``display`` for all tasks that start after this call."""
    global _display
    _display = display


def track(description: str, unit: str, total: int | None = None) -> AbstractContextManager[ProgressTask]:
    """Start a task. A task with an empty description is not shown.

    Args:
        unit: name of the units that ``advance`` counts, in the plural: ``"lines"``.
        total: number of units in the whole task; None if it is unknown.
    """
    display = _display if description else _show_nothing
    return display(description, unit, total)
