"""Show the progress of long computations as bars on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from rescorer_training.progress import ProgressTask


class _BarTask:
    def __init__(self, bar: tqdm) -> None:
        self._bar = bar

    def advance(self, amount: int = 1) -> None:
        self._bar.update(amount)

    def set_note(self, note: str) -> None:
        self._bar.set_postfix_str(note, refresh=False)


@contextmanager
def show_bar(description: str, unit: str, total: int | None) -> Iterator[ProgressTask]:
    """Draw a bar on stderr while a task runs; draw nothing where stderr is not a terminal."""
    # disable=None is tqdm's own test for a terminal
    with tqdm(
        desc=description, unit=f" {unit}", total=total, unit_scale=True, leave=False, disable=None
    ) as bar:
        yield _BarTask(bar)
