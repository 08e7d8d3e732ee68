"""Fields of option dataclasses that the command line turns into options."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, *flags: str, metavar: str | None = None, min: float | None = None) -> Any:
    """Define a field from which ``rescorer.cli.options`` makes an option of a command.

    Args:
        flags: option names, if they differ from the field's name: ``--embedding``, ``--tied/--untied``.
        min: smallest value.
    """
    return field(default=default, metadata={"help": help, "flags": flags, "metavar": metavar, "min": min})
