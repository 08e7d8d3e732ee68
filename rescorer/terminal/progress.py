"""Show the progress of a command on standard error: a bar on a terminal, and a line per minute in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from rescorer.errors import FormatError
from rescorer.escapes import escape_controls, plain_stream
from rescorer.formats.io.text_io import max_line_bytes, read_byte_chunks, split_lines
from rescorer.progress import ProgressTask

if TYPE_CHECKING:
    from rescorer.jobs.files import FileSummary

LOG_INTERVAL_S = 60.0
"""Seconds between lines about a task if standard error is not a terminal. Shorter tasks print none."""

SHORT_TASK_S = 0.5
"""Time after which a task gets a bar: shorter ones would only flicker."""


class LogLines(tqdm):
    """The progress of a task as lines for a log, where a bar would be one endless line."""

    monitor_interval = 0  # the thread would refresh a bar that nothing updates
    _said = 0.0  # when the last line was printed

    def display(self, *_: object, **__: object) -> None:
        """Print a line if the last one was ``LOG_INTERVAL_S`` ago."""
        now = time.time()  # as tqdm takes its start
        if now - max(self._said, getattr(self, "start_t", now)) < LOG_INTERVAL_S:
            return
        self._said = now
        facts = self.format_dict
        elapsed = facts["elapsed"]
        n, total, unit = facts["n"], facts["total"], self.unit.strip()
        done = f"{n:,} {unit}"
        left = ""
        if total:
            done = f"{n:,} of {total:,} {unit}, {100 * n / total:.0f} %"
            done_here = n - facts["initial"]
            seconds = elapsed / done_here * (total - n) if done_here else 0
            left = f", {self.format_interval(seconds)} left" if done_here else ""
        note = f"; {self.postfix}" if self.postfix else ""
        what = facts["prefix"].removesuffix(": ")
        print(f"{what}: {done} in {self.format_interval(elapsed)}{left}{note}", file=self.fp, flush=True)

    def clear(self, *_: object, **__: object) -> None:
        """Do nothing, since there is no bar to clear."""

    def close(self) -> None:
        """End the task without a last line."""
        if not self.disable:
            self.disable = True
            self._decr_instances(self)  # type: ignore[attr-defined]  # not in its stubs


def progress_bar(what: str = "", *, enabled: bool = True, **style: Any) -> tqdm[Any]:
    """Return a context manager that shows progress on standard error: a bar if that is a terminal, else a
    line per minute.

    Texts that are shown next to it later need ``escape_controls``.

    Args:
        style: arguments of tqdm, such as ``total`` and ``unit``.
    """
    make = tqdm if sys.stderr.isatty() else LogLines
    return make(desc=escape_controls(what), file=plain_stream(sys.stderr), disable=not enabled, **style)


class _BarTask(ProgressTask):
    def __init__(self, bar: tqdm[Any]) -> None:
        self._bar = bar

    def advance(self, amount: int = 1) -> None:
        self._bar.update(amount)

    def set_note(self, note: str) -> None:
        self._bar.set_postfix_str(escape_controls(note), refresh=False)


@contextmanager
def show_bar(description: str, unit: str, total: int | None) -> Iterator[ProgressTask]:
    """Show the progress of library code, as the display of ``rescorer.progress``; see ``progress_bar``.

    Tasks that end within ``SHORT_TASK_S`` seconds have no bar, which would only flicker.
    """
    style: dict[str, Any] = {"unit": f" {unit}", "unit_scale": True, "leave": False, "delay": SHORT_TASK_S}
    with progress_bar(description, total=total, **style) as bar:
        yield _BarTask(bar)


def count_lists(sources: Sequence[str]) -> int | None:
    """Count the lists of inputs for a bar; None if not all are JSON lines, or no bar is shown."""
    counts = list(map(count_json_lines, sources)) if sys.stderr.isatty() else []
    return None if None in counts else sum(filter(None, counts)) or None


def count_json_lines(source: str) -> int | None:
    """Count the lists of a file of JSON lines; return None if the file has another format or a single line.

    This takes a hundredth of the time of rescoring the file, or less, and never holds a line that is longer
    than a list may be.
    """
    path = Path(source)
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            lines = split_lines(read_byte_chunks(file), max_line_bytes())
            first, second = next(lines, None), next(lines, None)
            if first is None or second is None or not first.startswith(b"{"):
                return None
            is_list = b'"format"' not in first
            rest = chain([second], lines)
            return sum(line is not None and line.startswith(b"{") for line in rest) + is_list
    except (OSError, FormatError):  # a damaged file, which the reader reports
        return None


@contextmanager
def show_rescoring(
    enabled: bool, sources: Sequence[str] = ()
) -> Iterator[Callable[[int, FileSummary], None]]:
    """Show the progress of rescoring; yield the function to call after each batch. See ``progress_bar``.

    Args:
        sources: the inputs. If all are files of JSON lines, the bar also shows the total number of lists.
            Without a terminal, they are not read.
    """
    total = count_lists(sources) if enabled else None
    with progress_bar("rescoring", enabled=enabled, unit=" lists", total=total) as bar:

        def update(n_items: int, summary: FileSummary) -> None:
            bar.update(n_items)
            bar.set_postfix_str(f"{summary.words:,} words", refresh=False)

        yield update
