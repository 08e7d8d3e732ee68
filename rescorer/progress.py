"""Report the progress of long computations.

Progress works like logging: library code only reports how far it is, and the program that uses the library
installs a display, such as a bar on the terminal. Without a display, nothing is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

Item = TypeVar("Item")


class ProgressTask:
    """One computation that reports how far it is. Displays override the methods; these show nothing."""

    def advance(self, amount: int = 1) -> None:
        """Report that ``amount`` more units of work are done. May be called by several threads."""

    def set_note(self, note: str) -> None:
        """Show a short text next to the progress, such as the current value of an objective."""


Display = Callable[[str, str, int | None], AbstractContextManager[ProgressTask]]
"""A function that opens the display of one task.

Its arguments are those of ``track``: a description, the name of a unit of work, and the total if it is known.
"""


def show_nothing(description: str, unit: str, total: int | None) -> AbstractContextManager[ProgressTask]:
    """The display of programs that install none, or that are asked to be quiet."""
    return nullcontext(ProgressTask())


_display: Display = show_nothing


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
    display = _display if description else show_nothing
    return display(description, unit, total)


def advance_over(items: Sequence[Item], description: str, unit: str) -> Iterator[Item]:
    """Yield the items of a task; each counts as done when the next one is asked for. See ``track``."""
    with track(description, unit, len(items)) as task:
        for item in items:
            yield item
            task.advance()
