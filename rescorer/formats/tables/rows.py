"""Read the rows of csv, tsv and other delimited text: quoted cells, rows of several lines, and bounds.

Quoting is that of RFC 4180 and Python's csv module. Many programs write tab-separated text without quoting,
so that a quotation mark is part of the text. A line whose marks are not those of quoted cells is therefore
split at its delimiters if that gives the expected number of cells, and an unclosed mark takes no other rows
with it.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from rescorer.errors import FormatError

DELIMITERS: Mapping[str, str] = MappingProxyType({"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"})
"""Delimiters by the names that options give them, because a comma would end the option."""
MAX_COLUMNS = 1000
MAX_ROW_CHARACTERS = 1 << 20
"""Largest size of a row of several lines; that of one line is bounded by ``text_io.max_line_bytes``."""
MAX_CELL_CHARACTERS = csv.field_size_limit()
QUOTE = '"'
NumberedLine = tuple[int, str | FormatError]
"""A line with its 1-based number, or the error in its place."""


class RowError(FormatError):
    """A line is not a row; ``cells`` are what its delimiters separate, to find the list it belongs to."""

    cells: tuple[str, ...] = ()


NumberedRow = tuple[int, list[str] | FormatError]
"""The number of the first line of a row, and its cells or the error in its place."""


def parse_rows(
    lines: Iterable[NumberedLine], delimiter: str, file: str, n_columns: int = 0
) -> Iterator[NumberedRow]:
    """Yield the rows of numbered lines; blank lines between rows are skipped.

    Args:
        file: name of the file for messages.
        n_columns: number of cells that each row should have; 0: that of the first row.
    """
    upcoming = _Lines(lines)
    for number, text in upcoming:
        if isinstance(text, FormatError):
            yield number, text
        elif text.strip():
            try:
                cells = _parse_row(text, upcoming, delimiter, n_columns)
                n_columns = n_columns or len(cells)
                if len(cells) != n_columns:
                    message = f"expected {n_columns} columns as in the first row, got {len(cells)}"
                    raise ValueError(f"{message}; is a delimiter in a text, without quotation marks?")
            except ValueError as error:
                row_error = RowError(str(error), file=file, line=number)
                row_error.cells = tuple(text.split(delimiter, MAX_COLUMNS))
                yield number, row_error
            else:
                yield number, cells


def split_cells(text: str, delimiter: str, n_columns: int = 0) -> list[str] | None:
    """Split the text of one row into its cells; None if its quotation marks are not those of quoted cells.

    Args:
        n_columns: number of cells for which a line with other quotation marks is split as it is.
    """
    if QUOTE not in text:
        return text.split(delimiter)
    try:
        (cells,) = csv.reader([text], delimiter=delimiter, strict=True)
    except (csv.Error, ValueError):  # ValueError: a bare carriage return made two rows
        cells = text.split(delimiter)
        return cells if len(cells) == n_columns and "\n" not in text else None
    return cells


def join_cells(cells: Sequence[str], delimiter: str) -> str:
    """Format a row without its line end, so that ``split_cells`` gives the same cells."""
    marks = (delimiter, QUOTE, "\n", "\r")
    quoted = (
        QUOTE + cell.replace(QUOTE, QUOTE * 2) + QUOTE if any(mark in cell for mark in marks) else cell
        for cell in cells
    )
    return delimiter.join(quoted)


class _Lines:
    """Numbered lines, of which some can be taken ahead and put back."""

    def __init__(self, lines: Iterable[NumberedLine]) -> None:
        self._source, self._returned = iter(lines), deque[NumberedLine]()

    def __iter__(self) -> Iterator[NumberedLine]:
        return self

    def __next__(self) -> NumberedLine:
        return self._returned.popleft() if self._returned else next(self._source)

    def put_back(self, lines: Sequence[NumberedLine]) -> None:
        self._returned.extendleft(reversed(lines))


def _parse_row(text: str, upcoming: _Lines, delimiter: str, n_columns: int) -> list[str]:
    """Parse the row that begins with a line; take the further lines that belong to it.

    Raises:
        ValueError: If it is no row.
    """
    if text.count(delimiter) >= MAX_COLUMNS:
        raise ValueError(f"more than {MAX_COLUMNS:,} columns")
    cells = split_cells(text, delimiter)
    if cells is None:
        cells = _join_lines(text, upcoming, delimiter, n_columns) or split_cells(text, delimiter, n_columns)
    if cells is None:
        raise ValueError(
            "a quoted cell that is not closed, has text after its closing quotation mark, or is longer than "
            f"{MAX_CELL_CHARACTERS:,} characters"
        )
    if any(len(cell) > MAX_CELL_CHARACTERS for cell in cells):
        raise ValueError(f"a cell of more than {MAX_CELL_CHARACTERS:,} characters")
    return cells


def _join_lines(text: str, upcoming: _Lines, delimiter: str, n_columns: int) -> list[str] | None:
    """Parse a row of several lines, whose last line makes the number of quotation marks even.

    Returns None, and puts the lines back, if there is no such row; also if each of the lines has the expected
    number of cells without quoting: `"well` in one row and `done"` in the next are texts.
    """
    taken: list[NumberedLine] = []
    parts, size, n_quotes = [text], len(text), text.count(QUOTE)
    while n_quotes % 2 and size <= MAX_ROW_CHARACTERS and (item := next(upcoming, None)):
        taken.append(item)
        if isinstance(item[1], FormatError):
            break
        parts.append(item[1])
        size += len(item[1]) + 1
        n_quotes += item[1].count(QUOTE)
    is_closed = len(parts) == len(taken) + 1 and not n_quotes % 2 and size <= MAX_ROW_CHARACTERS
    are_rows = n_columns > 1 and all(part.count(delimiter) == n_columns - 1 for part in parts)
    whole = "\n".join(parts)
    cells = None
    if is_closed and not are_rows and whole.count(delimiter) < MAX_COLUMNS:
        cells = split_cells(whole, delimiter)
    if cells is None:
        upcoming.put_back(taken)
    return cells
