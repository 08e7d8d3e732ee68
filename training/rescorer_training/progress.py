"""Report the progress of long computations without deciding whether or how it is shown.

As with logging, library code only reports; the program that runs it installs a display. Without one, reports
go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


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
