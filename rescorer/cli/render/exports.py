"""Write a table as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.output import check_output_path
from rescorer.formats.io.text_io import write_text

Rows = Sequence[Sequence[str]]

ExportOption = Annotated[
    Path | None,
    typer.Option(
        "--export",
        metavar="FILE",
        help="Also write the table to a file: Markdown (.md) or LaTeX (.tex, package booktabs), as it is "
        "shown, or CSV (.csv), in which every number has a column of its own.",
    ),
]


def to_markdown(headings: Sequence[str], rows: Rows) -> str:
    """Format a table in GitHub's Markdown; numbers, after the first column, are right-aligned."""
    marks = ["---", *["---:"] * (len(headings) - 1)]
    escaped = (list(map(_escape_markdown, line)) for line in (headings, *rows))
    head, *others = (f"| {' | '.join(cells)} |\n" for cells in escaped)
    return "".join([head, f"| {' | '.join(marks)} |\n", *others])


def _escape_markdown(cell: str) -> str:
    """Escape what would end the cell or be read as HTML, emphasis, code or a link."""
    escaped = re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", cell).replace("<", "&lt;")
    return " ".join(escaped.split())


def to_csv(headings: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> str:
    """Format a table for programs as comma-separated values (RFC 4180); None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([headings, *rows])
    return text.getvalue()


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
    return "".join(LATEX_ESCAPES.get(character, character) for character in cell)


WRITERS: dict[str, Callable[[Sequence[str], Rows], str]] = {".md": to_markdown, ".tex": to_latex}
"""Tables for people, by the end of the file's name."""
CSV = ".csv"


def check_export(path: Path | None) -> None:
    """Raise ConfigError if ``--export`` names an unknown kind of file or a folder that does not exist."""
    if path is not None:
        check_output_path("--export", path, [*WRITERS, CSV])


def write_export(
    path: Path, headings: Sequence[str], rows: Rows, records: Sequence[Mapping[str, str | float | None]]
) -> None:
    """Write a table in the format that the end of the file's name chooses; see ``check_export``.

    Args:
        headings, rows: the table as people read it, for Markdown and LaTeX.
        records: the same as unformatted numbers, for CSV; all have the same keys, which become headings.

    Raises:
        FormatError: the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix == CSV:
        write_text(path, to_csv(list(records[0]), [list(record.values()) for record in records]))
    else:
        write_text(path, WRITERS[suffix](headings, rows))
