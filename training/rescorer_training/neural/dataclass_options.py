"""Declare command-line options tersely, as dataclass fields with help."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, panel: str, help: str, *names: str, **more: Any) -> Any:
    """A dataclass field for ``rescorer.cli.options.dataclass_options.expand_options``.

    Args:
        panel: heading under which ``--help`` lists it.
        names: on the command line, if not the field's own: ``--embedding``, ``--carried/--reset``.
        more: for ``typer.Option``, such as ``metavar``.
    """
    return field(
        default=default, metadata={"option": (names, {"help": help, "rich_help_panel": panel, **more})}
    )
