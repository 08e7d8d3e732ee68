"""Collect settings from options, environment variables and a TOML file, in this order of precedence.

The source of each value is kept for error messages. Misspelt environment variables are errors, because
starting without an intended limit is worse than not starting. Variables that resemble no setting are only
reported, because other programs may use them.
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

from rescorer.errors import ConfigError, find_similar
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE

PREFIX = "RESCORER_"
CONFIG_VARIABLE = "RESCORER_CONFIG"
"""Environment variable that names the settings file, unless an option does."""
OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, MAX_LINE_VARIABLE, "RESCORER_CACHE", "RESCORER_DATA"})
"""Variables with our prefix that are not settings of the service: the last two are of other commands, and of
tests."""
SERVICE_LINK = re.compile(
    r"\w+_(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_\w+)?=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*)"
)
"""Variables that Kubernetes sets for each Service: for one called rescorer,
RESCORER_PORT=tcp://10.0.0.1:80."""
RENAMED = {"scorers": "workers", "scorer_timeout_s": "worker_timeout_s"}
"""Settings by their former names, which are errors like misspelt ones."""
OTHER_SERVERS = {
    "listen": ("host", "port"),
    "bind": ("host", "port"),
    "address": ("host", "port"),
    "addr": ("host", "port"),
    "cert": ("tls_certificate",),
    "key": ("tls_key",),
}
"""Settings by the names that other servers have for them."""
LETTERS_PER_TYPO = 5
"""Number of letters per tolerated typo when a name is compared with the known names; one typo is always
tolerated."""


class Given(NamedTuple):
    """A value for a setting, and the source it comes from."""

    value: Any
    origin: str
    """For example ``option --port``, ``environment RESCORER_PORT`` or ``file service.toml``."""


def gather(
    settings: type[BaseSettings], config: Path | str | None, options: Mapping[str, Any]
) -> dict[str, list[Given]]:
    """Collect the values of every source, by setting; the first value of a setting is the effective one.

    Args:
        options: values by setting, or by flag (``--prot``) if the flag is unknown; None counts as not given.

    Raises:
        ConfigError: If the settings file cannot be read.
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
    for name, value_given in sources:
        values.setdefault(name, []).append(value_given)
    return values


def effective(values: Mapping[str, list[Given]]) -> dict[str, Any]:
    """Return the effective value of each setting."""
    return {name: given[0].value for name, given in values.items()}


def read_file(settings: type[BaseSettings], path: Path) -> dict[str, Any]:
    """Read a TOML file of settings; paths in it are relative to the working directory of the server.

    Raises:
        ConfigError: If the file cannot be read.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such settings file")
    try:
        return TomlConfigSettingsSource(settings, path)()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None


def unknown_setting(name: str, known: list[str]) -> str:
    """Return the error message for an unknown setting or flag, with its new name or the nearest known one."""
    plain_name = name.removeprefix("--").replace("-", "_")
    is_flag = name.startswith("--")
    kind, spell = ("option", flag_of) if is_flag else ("setting", str)
    if plain_name in RENAMED:
        return f"no such {kind}; it is now called {spell(RENAMED[plain_name])!r}"
    if plain_name in OTHER_SERVERS:
        settings = " and ".join(repr(spell(setting)) for setting in OTHER_SERVERS[plain_name])
        return f"no such {kind}; use {settings}"
    # Without dashes, which would make all flags similar.
    near = find_similar(plain_name, [*known, "config"] if is_flag else known)
    return f"no such {kind}" + (f"; did you mean {spell(near)!r}?" if near else "")


def origin(name: str) -> str:
    return "command line" if name.startswith("--") else f"option {flag_of(name)}"


def flag_of(name: str) -> str:
    """Return the command-line option of a setting."""
    return "--" + name.replace("_", "-")


def variables(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    """Yield setting, value and variable for each variable that is a setting, a renamed or a misspelt one."""
    for name, value in EnvSettingsSource(settings)().items():
        if not is_service_link(variable := PREFIX + name.upper(), value):
            yield name, value, variable
    for name, value, variable in _unknown(settings):
        if name in RENAMED or is_misspelt(name, settings.model_fields):
            yield name, value, variable


def unknown_variables(settings: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    """Yield variables with our prefix that resemble no setting, such as RESCORER_IMAGE, with a message
    each."""
    for name, _, variable in _unknown(settings):
        if name not in RENAMED and not is_misspelt(name, settings.model_fields):
            yield variable, unknown_setting(name, list(settings.model_fields))


def is_service_link(variable: str, value: str) -> bool:
    return SERVICE_LINK.fullmatch(f"{variable}={value}") is not None


def is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Whether a name is a known one with typos: letters added, left out, changed or exchanged."""
    max_typos = max(1, len(name) // LETTERS_PER_TYPO)
    return any(OSA.distance(name, known_name) <= max_typos for known_name in known)


def _unknown(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    """Yield the same as ``variables`` for variables that match no setting; case is ignored, as by
    pydantic."""
    for key, value in os.environ.items():
        variable = key.upper()
        name = variable.removeprefix(PREFIX).lower()
        known = name in settings.model_fields or variable in OTHER_VARIABLES
        if variable.startswith(PREFIX) and not known and not is_service_link(variable, value):
            yield name, value, variable
