"""Owns where the service's settings come from: options, then the environment, then a file; and tells it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_settings import BaseSettings, TomlConfigSettingsSource

from rescorer.errors import ConfigError, did_you_mean
from rescorer.service.environment import CONFIG_VARIABLE, variables


class Given(NamedTuple):
    """A value that some source has for a setting."""

    value: Any
    origin: str
    """Such as ``option --port``, ``environment RESCORER_PORT`` or ``file service.toml``."""


def gather(
    settings: type[BaseSettings], config: Path | str | None, options: Mapping[str, Any]
) -> dict[str, list[Given]]:
    """What each source says, by setting; of several values the first counts.

    Args:
        options: values by setting, or by flag (``--prot``) where there is no such option.

    Raises:
        ConfigError: the file cannot be read.
    """
    given = {name: value for name, value in options.items() if value is not None}
    sources = [(name, Given(value, origin(name))) for name, value in given.items()]
    for name, value, variable in variables(settings):
        sources.append((name, Given(value, f"environment {variable}")))
    path = config or os.environ.get(CONFIG_VARIABLE)
    if path:
        for name, value in read_file(settings, Path(path)).items():
            sources.append((name, Given(value, f"file {path}")))
    values: dict[str, list[Given]] = {}
    for name, each in sources:
        values.setdefault(name, []).append(each)
    return values


def effective(values: Mapping[str, list[Given]]) -> dict[str, Any]:
    """The values that count."""
    return {name: given[0].value for name, given in values.items()}


def read_file(settings: type[BaseSettings], path: Path) -> dict[str, Any]:
    """What a TOML file says; raises as ``gather``. Paths in it are relative to where the server runs."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of settings")
    try:
        return TomlConfigSettingsSource(settings, path)()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise ConfigError(f"{path}: cannot be read as TOML: {fault}") from None


def unknown_setting(name: str, known: list[str]) -> str:
    """What to say of a setting, or of a flag, that there is not."""
    if name.startswith("--"):
        return "no such option" + did_you_mean(name, [flag_of(each) for each in (*known, "config")])
    return "no such setting" + did_you_mean(name, known)


def origin(name: str) -> str:
    return "command line" if name.startswith("--") else f"option {flag_of(name)}"


def flag_of(name: str) -> str:
    """A setting's option of the command line."""
    return "--" + name.replace("_", "-")
