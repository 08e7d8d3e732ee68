"""Print tables and lines that remain readable on narrow terminals: numbers are never cut or wrapped."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rescorer.evaluation.figures import MAX_NUMBER_CHARS, format_size

PIPE_WIDTH = 160
"""Columns assumed if the output is neither a terminal nor given a width by the variable COLUMNS."""
GAP = 2
"""Spaces between columns."""
MAX_TEXT_WIDTH = 96
"""Longest line of text in a grid; longer ones are hard to read."""
LONG_NUMBER = re.compile(r"(?<![\w.,])([+−-]?)(\d[\d,]*(?:\.\d+)?)(?![\w.])")
MAX_NAME_SHARE = 0.3
"""Largest share of the width that the names of the rows may take if the table must fold."""


def has_width() -> bool:
    """Whether the output has a width: that of a terminal, or one that the variable COLUMNS declares."""
    return sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()


class PipeConsole(Console):
    """A console that reports a closed pipe to the program, which ends with the exit code of SIGPIPE."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise BrokenPipeError


def make_console() -> Console:
    """A console on stdout, as wide as the terminal."""
    return PipeConsole(width=None if has_width() else PIPE_WIDTH, highlight=False)


def print_out(*renderables: RenderableType) -> None:
    """Print tables, and text as it is, to stdout; text wraps at spaces if the output has a width."""
    console = make_console()
    for renderable in renderables:
        is_text = isinstance(renderable, str)
        content = Text(renderable) if isinstance(renderable, str) else renderable
        console.print(content, soft_wrap=is_text and not has_width())


class FoldingTable:
    """A table with a column of names and columns of numbers, which are right-aligned.

    Where the numbers do not fit beside each other, the headings wrap; columns that still do not fit follow
    in a further table below, which repeats the names. The most important columns therefore come first.
    """

    def __init__(self, first_column: str, *number_columns: str, title: str = "") -> None:
        self._names, self._headings, self._title = first_column, number_columns, title
        self._rows: list[tuple[str, tuple[str, ...]]] = []

    def add_row(self, name: str, *numbers: str) -> None:
        """Add a row with one formatted number per column."""
        if len(numbers) != len(self._headings):
            raise ValueError(f"{len(numbers)} numbers for {len(self._headings)} columns")
        self._rows.append((name, tuple(map(shorten_numbers, numbers))))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = self._name_width(options.max_width) + sum(GAP + width for width in self._full_widths())
        return Measurement(min(widest, options.max_width), min(widest, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self._title:
            yield Text(self._title, style="italic")
        name_width = self._name_width(options.max_width)
        free = options.max_width - name_width
        widths = self._full_widths()
        if sum(GAP + width for width in widths) > free:
            widths = [self._width(column, self._headings[column].split()) for column in range(len(widths))]
        for number, columns in enumerate(_fold(widths, free)):
            if number:
                yield Text()
            yield self._part(columns, name_width, widths)

    def _part(self, columns: Sequence[int], name_width: int, widths: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        table.add_column(self._names, width=name_width, overflow="fold", vertical="bottom")
        for column in columns:
            heading = Text(self._headings[column], justify="right")
            table.add_column(heading, justify="right", width=widths[column], vertical="bottom")
        for name, numbers in self._rows:
            table.add_row(Text(name), *(Text(numbers[column]) for column in columns))
        return table

    def _name_width(self, max_width: int) -> int:
        longest = max(map(cell_len, (self._names, *(name for name, _ in self._rows))))
        if longest + sum(GAP + width for width in self._full_widths()) <= max_width:
            return longest
        return min(longest, max(int(MAX_NAME_SHARE * max_width), 1))

    def _full_widths(self) -> list[int]:
        return [self._width(column, [heading]) for column, heading in enumerate(self._headings)]

    def _width(self, column: int, heading_lines: Sequence[str]) -> int:
        cells = (numbers[column] for _, numbers in self._rows)
        return max(map(cell_len, (*heading_lines, *cells)), default=0)


def shorten_numbers(cell: str) -> str:
    """Write numbers with decimals or commas that are longer than a column should be as powers of ten.

    >>> shorten_numbers("−18,904,574,813,251.25 ± 0.50")
    '−1.89e+13 ± 0.50'
    """
    return LONG_NUMBER.sub(_shorten, cell)


def _shorten(match: re.Match[str]) -> str:
    sign, number = match.groups()
    if len(match[0]) <= MAX_NUMBER_CHARS or not {*",."} & {*number}:  # plain digits may be an id
        return match[0]
    return sign + format_size(float(number.replace(",", "")), 0)


def make_text_grid(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Make a table without headings: names on the left, and text on the right, which wraps at spaces."""
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", max_width=MAX_TEXT_WIDTH)
    for name, text in rows:
        grid.add_row(Text(name), Text(text) if isinstance(text, str) else text)
    return grid


def _fold(widths: Sequence[int], free: int) -> Iterator[list[int]]:
    """Yield the indices of columns that fit beside each other; at least one column, however wide it is."""
    columns: list[int] = []
    used = 0
    for column, width in enumerate(widths):
        if columns and used + GAP + width > free:
            yield columns
            columns, used = [], 0
        columns.append(column)
        used += GAP + width
    yield columns
