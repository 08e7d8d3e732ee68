"""Owns how help is laid out: as plain text, where names are whole however narrow the terminal is.

The tables that typer makes cut them.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


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
