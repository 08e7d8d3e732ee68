"""Owns the command-line options of the service: one a setting, made from what the setting says of itself."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

GIVEN = "given"
"""Where a command finds the options that were given."""
SHORT = {"bundle": "-b"}


class SettingsCommand(TyperCommand):
    """A command that takes every setting as an option; the settings are imported only when it is run."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*options(), *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options that there are not are kept, to be told with all other mistakes."""
        ctx.ignore_unknown_options = ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        unknown = [each.partition("=") for each in rest if each.startswith("--")]
        if rest and not unknown:
            ctx.fail(f"no such option or argument: {' '.join(rest)}")
        ctx.meta.setdefault(GIVEN, {}).update({name: value for name, _, value in unknown})
        return rest


@cache
def options() -> tuple[Any, ...]:
    """Values stay as they were typed, so that the settings tell of all mistakes at once."""
    from rescorer.service.settings import ServiceSettings

    def command() -> None: ...

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter(name, field) for name, field in ServiceSettings.model_fields.items()]
    )
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return tuple(typer.main.get_command(app).params)


def parameter(name: str, field: Any) -> inspect.Parameter:
    from rescorer.service.config_sources import flag_of

    flag = flag_of(name)
    is_flag = field.annotation is bool
    names = [f"{flag}/--no-{flag[2:]}" if is_flag else flag, *([SHORT[name]] if name in SHORT else [])]
    told = " ".join((field.description or "").replace("``", "").split())
    default = (
        "" if field.default is False or field.default in (None, (), "") else f" (default {field.default})"
    )
    option = typer.Option(
        *names,
        help=told + default,
        metavar=None if is_flag else "VALUE",
        expose_value=False,
        callback=remember,
    )
    kind = bool if is_flag else str
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def remember(ctx: typer.Context, option: typer.CallbackParam, value: str) -> None:
    ctx.meta.setdefault(GIVEN, {})[option.name] = value


def given(ctx: typer.Context) -> dict[str, Any]:
    """The options by setting, None where one was not given; those that there are not as they were typed."""
    return ctx.meta[GIVEN]
