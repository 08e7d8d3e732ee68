"""Where settings come from: options before environment variables before a TOML file, each with its origin.

Options and files belong to the server alone; the environment is shared with whatever starts it. Misspelt
variables are errors, because starting without an intended limit is worse than not starting; variables that
resemble no setting are only reported.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_settings import BaseSettings, EnvSettingsSource, TomlConfigSettingsSource
from rapidfuzz.distance import OSA

from rescorer.errors import ConfigError, did_you_mean
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE

PREFIX = "RESCORER_"
CONFIG_VARIABLE = "RESCORER_CONFIG"
"""Names the file where no option does."""
NO_SETTINGS = frozenset({CONFIG_VARIABLE, MAX_LINE_VARIABLE, "RESCORER_DATA"})
"""Variables of ours that are no settings; the last one is the tests'."""
SERVICE_LINK = re.compile(
    r"\w+_(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_\w+)?=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*)"
)
"""What Kubernetes tells containers of each Service: of one called rescorer, RESCORER_PORT=tcp://10.0.0.1:80."""
LETTERS_A_SLIP = 5
"""A name with one slip in so many letters, or with one, is still told."""


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


def variables(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    """Setting, value and variable, of each that is a setting's or a setting's misspelt."""
    for name, value in EnvSettingsSource(settings)().items():
        if not is_link(variable := PREFIX + name.upper(), value):
            yield name, value, variable
    for name, value, variable in _unknown(settings):
        if is_misspelt(name, settings.model_fields):
            yield name, value, variable


def strange_variables(settings: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    """Variables that look like settings and are none, such as RESCORER_IMAGE, with what to say of each."""
    for name, _, variable in _unknown(settings):
        if not is_misspelt(name, settings.model_fields):
            yield variable, "no such setting" + did_you_mean(name, settings.model_fields)


def is_link(variable: str, value: str) -> bool:
    return SERVICE_LINK.fullmatch(f"{variable}={value}") is not None


def is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Whether it is a known name but for slips: a letter too many, one left out, changed or exchanged."""
    slips = max(1, len(name) // LETTERS_A_SLIP)
    return any(OSA.distance(name, each) <= slips for each in known)


def _unknown(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    """As ``variables``, of those that no setting is called by; case is nothing, as in pydantic's own."""
    for key, value in os.environ.items():
        variable = key.upper()
        name = variable.removeprefix(PREFIX).lower()
        known = name in settings.model_fields or variable in NO_SETTINGS
        if variable.startswith(PREFIX) and not known and not is_link(variable, value):
            yield name, value, variable
