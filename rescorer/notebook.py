"""What people see of objects at a prompt or in a notebook: a line, a table, a data frame, and ``help()``.

A class that shows itself derives from ``Shown`` and says two things: what one line about it tells, and its
``Table``. Texts in tables come from others: they are cut, and escaped for HTML. A class with
``document_fields`` passes the texts below its fields on to ``help()``, where Python would show bare names.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import import_module
from itertools import islice, pairwise
from typing import Any, TypeVar

from rescorer.errors import ConfigError, shorten
from rescorer.escapes import escape_controls

MAX_ROWS, MAX_COLUMNS = 20, 16
"""Largest numbers of rows and columns that a table in a notebook has; a data frame has them all."""
MAX_CELL_CHARS = 200
"""Longest text in a cell."""
MAX_NAMES = 4
"""Largest number of names that one line lists."""
LIBRARIES = ("pandas", "polars")
"""Packages with a class ``DataFrame``, in order of preference."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a heading, by columns.

    Args:
        heading: one line about the table.
        columns: the cells of each column by its name; all columns have the same length. Cells are texts,
            numbers, or None where there is nothing to say.
    """

    heading: str
    columns: Mapping[str, Sequence[Any]]

    def to_html(self) -> str:
        """Write at most ``MAX_ROWS`` rows and ``MAX_COLUMNS`` columns; a last line says what is left out."""
        names = list(islice(self.columns, MAX_COLUMNS))
        columns = [self.columns[name] for name in names]
        n_rows = max(map(len, columns), default=0)
        head = "".join(f"<th>{_escape(name)}</th>" for name in names)
        rows = ("".join(map(_cell, row)) for row in islice(zip(*columns, strict=True), MAX_ROWS))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        left = [
            f"{count:,} more {noun}"
            for count, noun in ((n_rows - MAX_ROWS, "rows"), (len(self.columns) - MAX_COLUMNS, "columns"))
            if count > 0
        ]
        rest = f"<p>… {' and '.join(left)}; to_dataframe() has them all</p>" if left else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<div><p>{_escape(self.heading)}</p>{table}{rest}</div>"

    def to_dataframe(self) -> Any:
        """Return a ``DataFrame`` of pandas or, where that is not installed, of polars.

        Raises:
            ConfigError: neither is installed.
        """
        for name in LIBRARIES:
            try:
                library = import_module(name)
            except ImportError:
                continue
            return library.DataFrame({column: list(cells) for column, cells in self.columns.items()})
        raise ConfigError("to_dataframe() needs pandas or polars: pip install pandas, or pip install polars")


def _escape(text: str) -> str:
    return escape(escape_controls(shorten(text, MAX_CELL_CHARS)))


def _cell(value: Any) -> str:
    """Write a cell: numbers stand right, with at most two decimals; others left."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td style="text-align:right">{format_short(value)}</td>'
    return f'<td style="text-align:left">{"–" if value is None else _escape(str(value))}</td>'


def format_short(value: float) -> str:
    """Write a number with two decimals, and whole numbers and infinities without.

    >>> format_short(-1616.9), format_short(3.0), format_short(float("inf"))
    ('-1,616.90', '3', 'inf')
    """
    whole = not math.isfinite(value) or value == int(value)
    return f"{value:,.0f}" if whole else f"{value:,.2f}"


def list_names(names: Iterable[str]) -> str:
    """Join names for one line; of many, the first.

    >>> list_names("abcdef")
    'a, b, c, d, …'
    """
    known = [shorten(str(name), MAX_CELL_CHARS // MAX_NAMES) for name in islice(names, MAX_NAMES + 1)]
    return ", ".join([*known[:MAX_NAMES], *["…"] * (len(known) > MAX_NAMES)])


def rename_equal(
    columns: Mapping[str, Sequence[Any]], taken: Iterable[str], owner: str
) -> dict[str, Sequence[Any]]:
    """Return columns whose names come from others, renamed where a table has such a column already.

    >>> rename_equal({"text": [1.0], "lm": [2.0]}, ["text"], "streams")
    {'streams.text': [1.0], 'lm': [2.0]}
    """
    own = set(taken)
    return {f"{owner}.{name}" if name in own else name: cells for name, cells in columns.items()}


class Shown:
    """Base of classes that show themselves: in one line by ``repr``, as a table in notebooks."""

    __slots__ = ()

    def _summary(self) -> str:
        """Return what stands between the parentheses of the line."""
        raise NotImplementedError

    def _table(self) -> Table:
        """Return all that the object shows, in columns."""
        raise NotImplementedError

    def __repr__(self) -> str:
        try:
            summary = escape_controls(self._summary())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            summary = "with fields of wrong types"  # an error about them may quote the object
        return f"{type(self).__name__}({summary})"

    def _repr_html_(self) -> str:
        return self._table().to_html()

    def to_dataframe(self) -> Any:
        """Return the whole table as a ``DataFrame`` of pandas or, where that is not installed, of polars.

        Raises:
            ConfigError: neither is installed.
        """
        return self._table().to_dataframe()


class _FieldTexts(dict[str, str]):
    """The texts below the fields of a class, by name, read from its source when somebody asks for help."""

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        super().__init__((name, "") for name in names)
        self._cls = cls

    def __getitem__(self, name: str) -> str:
        return read_field_texts(self._cls).get(name, "")


@cache
def read_field_texts(cls: type) -> dict[str, str]:
    """Return the text below each field in the source of a class; none where there is no source."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, SyntaxError):
        return {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    texts = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            value = below.value if isinstance(below, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[field.target.id] = inspect.cleandoc(value.value)
    return texts


def document_fields(cls: type[T]) -> type[T]:
    """Let ``help()`` show the texts below the fields of a dataclass with slots."""
    cls.__slots__ = _FieldTexts(cls, cls.__slots__)  # type: ignore[attr-defined]
    return cls
