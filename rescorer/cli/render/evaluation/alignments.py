"""Print reference and recognised texts word under word, with errors in colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from rescorer.cli.render.tables import make_console, print_out
from rescorer.evaluation.comparison.analysis import AlignedList
from rescorer.evaluation.error_analysis.aligned_text import Alignment
from rescorer.evaluation.error_analysis.columns import Column, align_three

GAP = "***"
"""Stands where a text lacks a word, as in sclite's output."""
LABELS = ("reference", "first pass", "rescored")
RIGHT, FIXED, BROKEN, WRONG = "", "bold green", "bold red", "yellow"
STYLES = {
    (True, True): (RIGHT, RIGHT),
    (False, True): (FIXED, FIXED),
    (True, False): (RIGHT, BROKEN),
    (False, False): (WRONG, WRONG),
}
"""Styles of both texts, by whether the first pass and the rescored text are right."""


def legend() -> Text:
    """Explain the colours."""
    parts = (("wrong in both", WRONG), ", ", ("fixed", FIXED), ", ", ("broken", BROKEN))
    return Text.assemble("errors: ", *parts, f"; {GAP} stands for no word")


def print_alignments(lists: Iterable[AlignedList]) -> None:
    """Print the texts of the lists in which something is wrong."""
    width = make_console().width
    print_out("", legend())
    for aligned in lists:
        if aligned.has_errors:
            print_out(*render_alignment(aligned, width))


def render_alignment(aligned: AlignedList, width: int) -> Iterator[Text]:
    """Yield the lines of a list: its id, then the texts in blocks of lines that fit the width."""
    yield Text(f"{aligned.id}, generated" if aligned.is_generated else aligned.id, style="bold")
    if aligned.before == aligned.after:
        yield from _render_block(_two_rows(aligned.before), (LABELS[0], "recognised"), width)
        return
    try:
        columns = align_three(aligned.before, aligned.after)
    except ValueError:  # each follows the reading of the reference that matches it best
        for alignment, label in ((aligned.before, LABELS[1]), (aligned.after, LABELS[2])):
            yield from _render_block(_two_rows(alignment), (LABELS[0], label), width)
        return
    yield from _render_block([_style(column) for column in columns], LABELS, width)


def render_change(first_pass: Alignment, width: int) -> Iterator[Text]:
    """Yield the lines of a text and of what replaces it, for lists without a reference.

    Args:
        first_pass: the choice of the first pass, in place of a reference, and the rescored text.
    """
    yield from _render_block(_two_rows(first_pass), LABELS[1:], width)


_Cells = tuple[tuple[str, str], ...]
"""Text and style of each row in one column."""


def _style(column: Column) -> _Cells:
    before, after = STYLES[column.before == column.reference, column.after == column.reference]
    return (
        (column.reference or GAP, RIGHT),
        (column.before or GAP, before),
        (column.after or GAP, after),
    )


def _two_rows(alignment: Alignment) -> list[_Cells]:
    return [
        ((pair.reference or GAP, RIGHT), (pair.hypothesis or GAP, RIGHT if pair.kind == "correct" else WRONG))
        for pair in alignment
    ]


def _render_block(columns: Sequence[_Cells], labels: Sequence[str], width: int) -> Iterator[Text]:
    label_width = max(map(len, labels)) + 2
    for begin, end in _wrap(columns, width - label_width):
        for row, label in enumerate(labels):
            line = Text.assemble((label.ljust(label_width), "dim"))
            for column in columns[begin:end]:
                text, style = column[row]
                line.append(text, style)
                line.append(" " * (_column_width(column) - cell_len(text) + 1))
            line.rstrip()
            yield line
        yield Text()


def _wrap(columns: Sequence[_Cells], width: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of columns that fit a width; at least one column each."""
    begin = used = 0
    for index, column in enumerate(columns):
        needed = _column_width(column) + 1
        if index > begin and used + needed > width + 1:
            yield begin, index
            begin, used = index, 0
        used += needed
    if begin < len(columns):
        yield begin, len(columns)


def _column_width(column: _Cells) -> int:
    return max(cell_len(text) for text, _ in column)
