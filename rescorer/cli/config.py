"""Owns the command ``rescorer config``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rescorer.cli.serve import ConfigOption
from rescorer.cli.settings_options import given

if TYPE_CHECKING:
    from rescorer.service.config_sources import Given
    from rescorer.service.settings import ServiceSettings


def config(ctx: typer.Context, config: ConfigOption = None) -> None:
    """Show the settings that `rescorer serve` would run with, and where each comes from.

    Example: rescorer config --config service.toml --port 0

    Takes the same options, environment and file, and starts nothing. It prints a TOML file of settings, or
    every mistake at once, a line each; that bundles or the device are not on this machine is one.
    """
    from rescorer.service.config_sources import gather
    from rescorer.service.environment import strange_variables
    from rescorer.service.settings import ServiceSettings, checked

    for variable, message in strange_variables(ServiceSettings):
        typer.echo(f"warning: environment {variable}: {message}", err=True)
    values = gather(ServiceSettings, config, given(ctx))
    for line in lines(checked(values, here=True), values):
        typer.echo(line)


def lines(settings: ServiceSettings, values: dict[str, list[Given]]) -> list[str]:
    """One a setting: its value, its source, and what that source goes before."""
    shown = {name: toml(name, getattr(settings, name)) for name in type(settings).model_fields}
    width = max(len(each) for each in shown.values())
    table = []
    for name, text in shown.items():
        said = values.get(name, [])
        why = said[0].origin if said else "default"
        if len(said) > 1:
            why += "; goes before " + ", ".join(f"{each.origin} ({each.value})" for each in said[1:])
        table.append(f"{text:{min(width, 50)}}  # {why}")
    return table


def toml(name: str, value: Any) -> str:
    """``name = value``, a comment where there is none; JSON's strings, numbers and lists are TOML's too."""
    if value is None:
        return f"# {name} ="
    plain = str(value) if isinstance(value, Path) else value
    return f"{name} = {json.dumps(plain, ensure_ascii=False)}"
