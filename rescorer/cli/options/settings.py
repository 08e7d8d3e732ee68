"""Options of the service's commands, one per setting, built from the settings' own types and descriptions."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

COLLECTED = "settings"
"""Key of the collected options in ``ctx.meta``."""
SHORT_FLAGS = {"bundle": "-b"}


class SettingsCommand(TyperCommand):
    """A command with one option per setting; the settings are imported only when the command runs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*settings_options(), *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep unknown options, so that they are reported together with all other errors."""
        ctx.ignore_unknown_options = ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        unknown = [argument.partition("=") for argument in rest if argument.startswith("--")]
        if rest and not unknown:
            ctx.fail(f"no such option or argument: {' '.join(rest)}")
        ctx.meta.setdefault(COLLECTED, {}).update({name: value for name, _, value in unknown})
        return rest


@cache
def settings_options() -> tuple[Any, ...]:
    """The options of all settings.

    Values remain strings as typed, so that the settings can report all errors together.
    """
    from rescorer.service.settings import ServiceSettings

    def command() -> None: ...

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [option_parameter(name, field) for name, field in ServiceSettings.model_fields.items()]
    )
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return tuple(typer.main.get_command(app).params)


def option_parameter(name: str, field: Any) -> inspect.Parameter:
    """The parameter of a typer command for one setting."""
    from rescorer.service.config_sources import flag_of

    flag = flag_of(name)
    is_flag = field.annotation is bool
    names = [f"{flag}/--no-{flag[2:]}" if is_flag else flag]
    names += [SHORT_FLAGS[name]] if name in SHORT_FLAGS else []
    description = " ".join((field.description or "").replace("``", "").split())
    has_default = field.default is not False and field.default not in (None, (), "")
    option = typer.Option(
        *names,
        help=description + (f" (default {field.default})" if has_default else ""),
        metavar=None if is_flag else "VALUE",
        expose_value=False,
        callback=_collect,
    )
    kind = bool if is_flag else str
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _collect(ctx: typer.Context, option: typer.CallbackParam, value: str) -> None:
    ctx.meta.setdefault(COLLECTED, {})[option.name] = value


def collected_options(ctx: typer.Context) -> dict[str, Any]:
    """Values by setting, None if not given; unknown options under the flag as typed."""
    return ctx.meta[COLLECTED]
