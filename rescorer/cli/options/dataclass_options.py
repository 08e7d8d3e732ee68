"""Declare command-line options once, as dataclass fields, and share them between commands.

A field is declared like a parameter of a typer command: with an ``Annotated`` type, whose ``typer.Option``
holds the flags and the help, and with a default. Fields of dataclasses in a library, which must not import
typer, carry ``help``, ``flags`` and ``metavar`` as metadata instead. A field without a default is required,
and a field may itself be such a dataclass. A command takes the dataclass as a parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter of a command by one option per field, at the same place in ``--help``.

    >>> @dataclass(frozen=True)
    ... class SizeOptions:
    ...     width: Annotated[int, typer.Option(help="Width in pixels.")] = 640
    >>> @expand_options
    ... def resize(file: str, size: SizeOptions) -> None: ...
    >>> list(inspect.signature(resize).parameters)
    ['file', 'width']
    """
    own = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in own if is_dataclass(parameter.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in own:
        if parameter.name in groups:
            parameters += _field_parameters(groups[parameter.name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**values: Any) -> None:
        options = {name: _build_group(group, values) for name, group in groups.items()}
        function(**options, **values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _build_group(group: Any, values: dict[str, Any]) -> Any:
    """Make a dataclass from the values of its options, which are taken out of ``values``."""
    hints = get_type_hints(group)
    return group(
        **{
            field.name: (
                _build_group(hints[field.name], values)
                if is_dataclass(hints[field.name])
                else values.pop(field.name)
            )
            for field in fields(group)
        }
    )


def _field_parameters(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        annotation = hints[field.name]
        if is_dataclass(annotation):
            yield from _field_parameters(annotation)
            continue
        if "help" in field.metadata:
            flags, metavar = field.metadata.get("flags", ()), field.metadata.get("metavar")
            option = typer.Option(*flags, help=field.metadata["help"], metavar=metavar)
            annotation = Annotated[annotation, option]
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
