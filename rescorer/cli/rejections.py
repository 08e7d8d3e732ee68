"""Owns how a command tells which lists it had to leave out: a few of each kind, however many there are."""

from __future__ import annotations

from collections import defaultdict

import typer

from rescorer.errors import InputError

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
