"""Groups of commands whose modules are imported when a command runs, so that its program starts fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer

from rescorer.cli.output import PLAIN_HELP, PlainGroup


class LazyCommand(NamedTuple):
    """A command that has not been imported."""

    target: str
    """``module:name`` of its function, or of its app of typer if it is a group."""
    summary: str
    """The first paragraph of its help, which the help of its group shows."""
    cls: str = ""
    """``module:name`` of its class; empty for the default."""


class _Commands(Mapping[str, Any]):
    """The commands of a group, each made when it is looked up."""

    def __init__(self, lazy: Mapping[str, LazyCommand]) -> None:
        self._lazy = lazy
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, self._lazy[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lazy)

    def __len__(self) -> int:
        return len(self._lazy)


def _make(name: str, lazy: LazyCommand) -> Any:
    """Make a command as a member of a group, which typer makes slightly differently from a lone one."""
    target = _find(lazy.target)
    group = typer.Typer(**PLAIN_HELP, add_completion=False)
    group.callback()(lambda: None)
    if isinstance(target, typer.Typer):
        group.add_typer(target, name=name)
    else:
        group.command(name, cls=_find(lazy.cls) if lazy.cls else None)(target)
    made: Any = typer.main.get_command(group)
    return made.commands[name]


def _find(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


class LazyGroup(PlainGroup):
    """A group of ``LazyCommand``s; a subclass says which."""

    lazy: ClassVar[Mapping[str, LazyCommand]]
    removed: ClassVar[Mapping[str, str]] = {}
    """What to use instead of a command that the group no longer has, by name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(self.lazy)  # type: ignore[assignment]  # click only reads it

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a command line; refuse one that was removed, naming what to use instead."""
        if args[0] in self.removed and not ctx.resilient_parsing:
            ctx.fail(f"'{args[0]}' was removed: {self.removed[args[0]]}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.lazy)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.lazy.items()])
