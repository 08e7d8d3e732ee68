"""Owns how help is laid out: as plain text, where names are whole however narrow the terminal is.

The tables that typer makes cut them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import typer
from typer.core import TyperGroup

from rescorer.errors import InputError


class PlainGroup(TyperGroup):
    """Commands with their whole first sentences; click cuts them to a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(each.help)) for name, each in commands if each is not None])


def summary(text: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


PLAIN: dict[str, Any] = {
    "cls": PlainGroup,
    "rich_markup_mode": None,
    "context_settings": {"max_content_width": 110},
}
"""Of a ``typer.Typer``."""


def shown(value: float | None, form: str) -> str:
    """In the format; a dash, which is no zero, for what was not measured.

    >>> shown(1234.56, ",.1f"), shown(None, ",.1f")
    ('1,234.6', '–')
    """
    return "–" if value is None else format(value, form)


NAMED_IN_JSON = "; --json names them all"
SHOWN = 3
"""Of one kind of fault; a file without references has as many faults as lists."""


class Rejections:
    """Lists that could not be used, and why; ``len`` is how many."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        """One a list, in the order they came."""
        self._of_kind: dict[tuple[str, str], list[str]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, fault: InputError) -> None:
        """One more. Its words are kept, not the fault, which holds on to the list."""
        reason = str(fault)
        self.reasons.append(reason)
        self._of_kind[type(fault).__name__, getattr(fault, "field", "")].append(reason)

    def tell(self, hint: str = "") -> None:
        """On stderr: the first few of each kind, how many more there are, and where those are to be had."""
        for (_, field), reasons in self._of_kind.items():
            for reason in reasons[:SHOWN]:
                typer.echo(f"rejected: {reason}", err=True)
            if (more := len(reasons) - SHOWN) > 0:
                about = f" for their {field}" if field else ""
                typer.echo(f"rejected: {more:,} more lists{about}{hint}", err=True)
