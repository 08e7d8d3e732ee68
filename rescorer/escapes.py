"""Escape texts of others where they could act: on a terminal, in a page that people read, in a spreadsheet.

Ids, groups, texts, and names of streams, models and files come from others. A terminal obeys escape sequences
in them, a bidi override turns the line around it, and a spreadsheet computes cells that look like formulas.
Each of these escapes is decided here and nowhere else. Files for machines, such as JSON lines, TRN and CTM,
get every text as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control terminals, end lines, change the direction of the text after them, or are none."""
LINE_END = "\n"
FORMULA_STARTS = (*"=+-@", *"＝＋－＠", "\t", "\r", "\n")
"""First characters by which spreadsheets take a cell for a formula, some of them in wide letters only."""


def escape_controls(text: str, keep: str = "") -> str:
    r"""Replace control characters by escapes such as ``\u001b``, which a JSON string may have, too.

    Joiners and direction marks, which scripts need, stay.

    Args:
        keep: control characters that stay.

    >>> print(escape_controls("a\x1b[2J\n"))
    a\u001b[2J\u000a
    """
    if text.isprintable():  # the usual case, decided quickly: no control character is printable
        return text
    return CONTROLS.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


def escape_formula(cell: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would take for a formula, so that it stays a text.

    >>> escape_formula("=1+1"), escape_formula("a=1")
    ("'=1+1", 'a=1')
    """
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell


class TerminalStream:
    """A stream to a terminal that escapes the control characters of every text, except line ends.

    Tabs become spaces, so that columns of tab-separated output remain columns. Everything else is passed on
    to the stream that it stands for. Both are equal, because tqdm finds the bars of a stream by comparing
    streams.

    Args:
        plain: the stream to the terminal.
    """

    def __init__(self, plain: TextIO) -> None:
        self.plain = plain

    def write(self, text: str) -> int:
        self.plain.write(escape_controls(text.expandtabs(), LINE_END))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.plain

    def __hash__(self) -> int:
        return hash(self.plain)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def plain_stream(stream: TextIO) -> TextIO:
    """The stream behind a ``TerminalStream``, for what draws by control characters and escapes texts itself.

    Other streams are returned as they are.
    """
    return stream.plain if isinstance(stream, TerminalStream) else stream


@contextmanager
def guard_terminals() -> Iterator[None]:
    """Within this context, let no control character through standard output and standard error to a terminal.

    Streams that are no terminals are left as they are.
    """
    guarded: dict[str, TextIO] = {}
    for name in ("stdout", "stderr"):
        stream: TextIO = getattr(sys, name)
        if stream.isatty():
            guarded[name] = cast(TextIO, TerminalStream(stream))
            setattr(sys, name, guarded[name])
    try:
        yield
    finally:
        for name, stream in guarded.items():
            if getattr(sys, name) is stream:  # a server puts another in its place
                setattr(sys, name, plain_stream(stream))
