"""Print tables that remain readable on narrow terminals, and write tables to files.

Tables are files of Markdown, CSV or LaTeX.
"""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rescorer.errors import ConfigError
from rescorer.escapes import LINE_END, escape_controls, escape_formula, plain_stream
from rescorer.evaluation.list_errors import MAX_NUMBER_CHARS, format_size
from rescorer.formats.io.text_io import write_text
from rescorer.terminal.options import option
from rescorer.terminal.program import check_output_path

PIPE_WIDTH = 160
"""Width of tables, in characters, if the output is not a terminal and the variable COLUMNS is not set."""
GAP = 2
"""Spaces between columns."""
MAX_TEXT_WIDTH = 96
"""Longest line of text in a grid, in characters; longer lines are hard to read."""
LONG_NUMBER = re.compile(r"(?<![\w.,])([+−-]?)(\d[\d,]*(?:\.\d+)?)(?![\w.])")
MIN_NAME_WIDTH = 16
"""Names of rows are broken into lines of at least this many characters if this makes a table fit."""
MAX_NAME_SHARE = 0.3
"""If a table is too wide and must fold, the largest share of the width that the names of rows may take."""


def has_width() -> bool:
    """Whether the width of the output is known: it is a terminal, or the variable COLUMNS is set."""
    return sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()


class PipeConsole(Console):
    """A console that reports a closed pipe to the program, which ends with the exit code of SIGPIPE."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise BrokenPipeError


def make_console() -> Console:
    """A console on stdout, as wide as the terminal. No text is read as markup."""
    width = None if has_width() else PIPE_WIDTH
    return PipeConsole(width=width, file=plain_stream(sys.stdout), highlight=False, markup=False, emoji=False)


def print_out(*renderables: RenderableType) -> None:
    """Print tables and plain text to stdout. Text wraps at spaces if the width of the output is known.

    Whatever the tables and texts hold, no control character reaches a terminal but those of styles.
    """
    console = make_console()
    for renderable in renderables:
        is_text = isinstance(renderable, str)
        content = Text(show(renderable, LINE_END)) if isinstance(renderable, str) else renderable
        console.print(_Shown(content), soft_wrap=is_text and not has_width())


def show(text: str, keep: str = "") -> str:
    """A text as it may be shown: without control characters, except those to keep, if stdout is a terminal.

    Tables show their cells in this way before they measure them, so that their columns stay straight.
    """
    return escape_controls(text, keep) if sys.stdout.isatty() else text


class _Shown:
    """What is shown of a table or text: control characters that still are in it become escapes."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._content)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._content, options):
            yield segment if segment.control else Segment(show(segment.text, LINE_END), segment.style)


class FoldingTable:
    """A table with a column of names, and columns of numbers, which are right-aligned.

    If the columns do not fit next to each other, the headings wrap. If this is not enough, the last columns
    move to another table below, which repeats the names. The most important columns should come first.
    """

    def __init__(self, first_column: str, *number_columns: str, title: str = "") -> None:
        self._names, self._title = show(first_column), show(title)
        self._headings = tuple(map(show, number_columns))
        self._rows: list[tuple[str, tuple[str, ...]]] = []

    def add_row(self, name: str, *numbers: str) -> None:
        """Add a row with one formatted number per column."""
        if len(numbers) != len(self._headings):
            raise ValueError(f"{len(numbers)} numbers for {len(self._headings)} columns")
        self._rows.append((show(name), tuple(show(shorten_numbers(number)) for number in numbers)))

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
        for number, columns in enumerate(fold_columns(widths, free, GAP)):
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
        left = max_width - sum(GAP + width for width in self._full_widths())
        if min(longest, MIN_NAME_WIDTH) <= left:
            return min(longest, left)
        return min(longest, max(int(MAX_NAME_SHARE * max_width), 1))

    def _full_widths(self) -> list[int]:
        return [self._width(column, [heading]) for column, heading in enumerate(self._headings)]

    def _width(self, column: int, heading_lines: Sequence[str]) -> int:
        cells = (numbers[column] for _, numbers in self._rows)
        return max(map(cell_len, (*heading_lines, *cells)), default=0)


def shorten_numbers(cell: str) -> str:
    """Write very long numbers as powers of ten, unless they consist of digits only, as ids may.

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
        grid.add_row(Text(show(name)), Text(show(text, LINE_END)) if isinstance(text, str) else text)
    return grid


def fold_columns(widths: Sequence[int], free: int, gap: int) -> Iterator[range]:
    """Divide columns into ranges whose columns fit next to each other. Each range has at least one column.

    Args:
        widths: widths of the columns.
        free: width that a range of columns may take.
        gap: number of spaces before each column.
    """
    begin = used = 0
    for column, width in enumerate(widths):
        if column > begin and used + gap + width > free:
            yield range(begin, column)
            begin, used = column, 0
        used += gap + width
    yield range(begin, len(widths))


Rows = Sequence[Sequence[str]]


def to_markdown(headings: Sequence[str], rows: Rows) -> str:
    """Format a table in GitHub's Markdown; numbers, after the first column, are right-aligned."""
    marks = ["---", *["---:"] * (len(headings) - 1)]
    escaped = (list(map(_escape_markdown, line)) for line in (headings, *rows))
    head, *others = (f"| {' | '.join(cells)} |\n" for cells in escaped)
    return "".join([head, f"| {' | '.join(marks)} |\n", *others])


def _escape_markdown(cell: str) -> str:
    """Escape characters that would end the cell, or be read as HTML, emphasis, code or a link."""
    escaped = re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", cell).replace("<", "&lt;")
    return escape_controls(" ".join(escaped.split()))


def to_csv(
    headings: Sequence[str], rows: Sequence[Sequence[str | float | None]], *, is_raw: bool = False
) -> str:
    """Format a table as comma-separated values (RFC 4180). None becomes an empty cell.

    Args:
        is_raw: whether texts that a spreadsheet would take for formulas are written as they are.
    """
    lines = []
    for cells in (headings, *rows):
        line = io.StringIO()
        shown = [escape_formula(cell) if isinstance(cell, str) and not is_raw else cell for cell in cells]
        csv.writer(line).writerow(shown)  # ends with \r\n, so that cells with either of them are quoted
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def to_latex(headings: Sequence[str], rows: Rows) -> str:
    """Format a table as a LaTeX ``tabular`` with the rules of the package booktabs."""
    columns = "l" + "r" * (len(headings) - 1)
    head, *body = (" & ".join(map(_escape_latex, line)) + r" \\" for line in (headings, *rows))
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$",
    "−": "$-$", "±": r"$\pm$", "–": "--", "→": r"$\rightarrow$",
    "|": r"\textbar{}",
}  # fmt: skip


def _escape_latex(cell: str) -> str:
    return "".join(LATEX_ESCAPES.get(character, character) for character in escape_controls(cell))


WRITERS: dict[str, Callable[[Sequence[str], Rows], str]] = {".md": to_markdown, ".tex": to_latex}
"""Functions that format tables for people, by the extension of the file's name."""
NOTES: dict[str, Callable[[Sequence[str]], str]] = {
    ".md": lambda notes: "".join(f"\n{_escape_markdown(note)}\n" for note in notes),
    ".tex": lambda notes: "".join(f"% {escape_controls(note)}\n" for note in notes),
}
"""Functions that format the lines below a table, by the extension of the file's name."""
CSV = ".csv"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The file to which a table is also written."""

    export: Path | None = option(
        None,
        "Also write a table for a paper to a file, with systems, error rates, gains and corrected p-values: "
        "Markdown (.md) or LaTeX (.tex, package booktabs); or CSV (.csv), in which every number has a column "
        "of its own.",
        metavar="FILE",
    )
    raw: bool = option(
        False,
        "In a .csv file, write texts that begin with = + - or @ as they are, for programs. Without this, "
        "they get an apostrophe before them, so that no spreadsheet computes them.",
    )

    def check(self) -> None:
        """Raise ConfigError if the file has an unknown extension or cannot be written, or there is none for
        ``--raw``."""
        if self.export is not None:
            check_output_path("--export", self.export, [*WRITERS, CSV])
        if self.raw and (self.export is None or self.export.suffix.lower() != CSV):
            raise ConfigError(f"--raw: expected --export with a name that ends in {CSV}")

    def write(
        self,
        headings: Sequence[str],
        rows: Rows,
        records: Sequence[Mapping[str, str | float | None]],
        notes: Sequence[str] = (),
    ) -> None:
        """Write a table in the format of the file's extension, if there is a file.

        Args:
            headings, rows: the table with formatted numbers, for Markdown and LaTeX.
            records: the rows with unformatted numbers, for CSV. All have the same keys, which become
                headings.
            notes: lines below the table in Markdown, and comments in LaTeX.

        Raises:
            FormatError: the file cannot be written.
        """
        if self.export is None:
            return
        suffix = self.export.suffix.lower()
        if suffix == CSV:
            cells = [list(record.values()) for record in records]
            write_text(self.export, to_csv(list(records[0]), cells, is_raw=self.raw))
        else:
            write_text(self.export, WRITERS[suffix](headings, rows) + NOTES[suffix](notes))
