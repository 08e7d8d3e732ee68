"""The command ``rescorer config``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rescorer.cli.options.settings import collected_options
from rescorer.cli.service.serve import ConfigOption

if TYPE_CHECKING:
    from rescorer.service.config_sources import Given
    from rescorer.service.settings import ServiceSettings

MAX_VALUE_WIDTH = 50
"""Largest width to which lines are padded so that their comments line up."""


def config(ctx: typer.Context, config: ConfigOption = None) -> None:
    """Show the settings that `rescorer serve` would run with, and where each of them comes from.

    Example: rescorer config --config service.toml --port 0

    Takes the same options, environment variables and file as `rescorer serve`, but does not start a server.
    Prints the settings as a TOML file, or all errors, one per line, including bundles and devices that this
    machine lacks.
    """
    from rescorer.service.config_sources import gather, unknown_variables
    from rescorer.service.preflight import check_settings
    from rescorer.service.settings import ServiceSettings

    for variable, message in unknown_variables(ServiceSettings):
        typer.echo(f"warning: environment {variable}: {message}", err=True)
    values = gather(ServiceSettings, config, collected_options(ctx))
    for line in render_settings(check_settings(values, check_machine=True), values):
        typer.echo(line)


def render_settings(settings: ServiceSettings, values: dict[str, list[Given]]) -> list[str]:
    """One line per setting: its value, its source, and the values that it takes precedence over."""
    texts = {name: to_toml(name, getattr(settings, name)) for name in type(settings).model_fields}
    width = min(max(len(text) for text in texts.values()), MAX_VALUE_WIDTH)
    lines = []
    for name, text in texts.items():
        sources = values.get(name, [])
        origin = sources[0].origin if sources else "default"
        if len(sources) > 1:
            others = ", ".join(f"{source.origin} ({source.value})" for source in sources[1:])
            origin += f"; takes precedence over {others}"
        lines.append(f"{text:{width}}  # {origin}")
    return lines


def to_toml(name: str, value: Any) -> str:
    """``name = value``, commented out without a value; JSON strings, numbers and lists are valid TOML too."""
    if value is None:
        return f"# {name} ="
    plain = str(value) if isinstance(value, Path) else value
    return f"{name} = {json.dumps(plain, ensure_ascii=False)}"
