"""Owns options that are written once: dataclass fields that say their help, and commands made from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from typing import Annotated, Any, get_type_hints

import typer


def option(default: Any, panel: str, help: str, *names: str, **more: Any) -> Any:
    """A dataclass field that is an option too.

    Args:
        panel: heading under which ``--help`` lists it.
        names: on the command line, where it is not the field's own: ``--embedding``, ``--carried/--reset``.
        more: for ``typer.Option``, such as ``metavar``.
    """
    return field(
        default=default, metadata={"option": (names, {"help": help, "rich_help_panel": panel, **more})}
    )


def takes(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command whose first parameters are dataclasses: their fields become its options."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[len(groups) :]
        added = [
            _parameter(each, get_type_hints(group)[each.name]) for group in groups for each in fields(group)
        ]

        def command(**values: Any) -> None:
            made = [group(**{each.name: values.pop(each.name) for each in fields(group)}) for group in groups]
            function(*made, **values)

        named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.Signature([*named, *added])  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in (*named, *added)}
        return command

    return decorate


def _parameter(each: Field[Any], kind: Any) -> inspect.Parameter:
    names, settings = each.metadata["option"]
    assert each.default is not MISSING
    annotation = Annotated[kind, typer.Option(*names, **settings)]
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=annotation
    )
