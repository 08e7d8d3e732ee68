"""Load the settings and check them, bundles and device included, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rescorer.errors import BundleError, ConfigError
from rescorer.service.config_sources import Given, effective, gather, unknown_setting
from rescorer.service.settings import ServiceSettings

EXPECTED = {
    "int": "an integer",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "path": "a path, as text",
    "string": "text",
    "tuple": "names, with commas between them or as an array",
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text that begins with http:// or https://",
}
"""What a value should be, by the beginning of pydantic's name for the mistake; the longest counts."""


def expected(mistake: Mapping[str, Any]) -> str:
    """What one of pydantic's findings wanted, in our words, or else in its own."""
    kinds = [kind for kind in EXPECTED if mistake["type"].startswith(kind)]
    if not kinds:
        return str(mistake["msg"])
    return "expected " + EXPECTED[max(kinds, key=len)].format(**mistake.get("ctx", {}))


def load_settings(config: Path | str | None = None, **given: Any) -> ServiceSettings:
    """Settings from arguments first, the environment second, a TOML file third, defaults last.

    Args:
        config: the file; None: the one that RESCORER_CONFIG names, if any.
        given: the arguments; None is not given.

    Raises:
        ConfigError: naming every setting that is unknown, wrong or contradicts another.
    """
    return checked(gather(ServiceSettings, config, given))


def checked(values: dict[str, list[Given]], here: bool = False) -> ServiceSettings:
    """Settings from values by name, the one that counts first.

    Args:
        here: the bundles and the device must be on this machine; otherwise they are looked for only where
            something else is wrong, to be told with it.

    Raises:
        ConfigError: as ``load_settings``.
        BundleError: nothing is wrong but that bundles are not here.
    """
    chosen = effective(values)
    mistakes = []
    try:
        settings = ServiceSettings(**chosen)
    except ValidationError as fault:
        for each in fault.errors():
            name, message = str(each["loc"][0]), f"{each['input']!r}; {expected(each)}"
            if each["type"] == "extra_forbidden":
                message = unknown_setting(name, list(ServiceSettings.model_fields))
            mistakes.append(f"{name} ({values[name][0].origin}): {message}")
            chosen.pop(name, None)
        settings = ServiceSettings(**chosen)
    mistakes += settings.contradictions()
    if mistakes or here:
        mistakes += missing_device(settings)
        absent = list(missing_bundles(settings))
        if mistakes:
            raise ConfigError(listed("service settings", mistakes + absent))
        if absent:
            raise BundleError(listed("bundles", absent))
    return settings


def listed(what: str, mistakes: Sequence[str]) -> str:
    """One mistake on the line that says what is wrong, several on lines of their own."""
    return f"{what}: {mistakes[0]}" if len(mistakes) == 1 else "\n  ".join([f"{what}:", *mistakes])


def missing_bundles(settings: ServiceSettings) -> Iterator[str]:
    """What is wrong with the folder of models; whether they can be used is seen when they are loaded."""
    # numpy and KenLM behind it are for who gets this far
    from rescorer.service.models.discovery import NO_BUNDLES, find, wanted

    folder = settings.repository or settings.bundle
    if folder is None:
        return
    try:
        found = find(folder, single=settings.repository is None)
    except BundleError as fault:
        yield str(fault)
        return
    if not found:
        yield f"{folder}: {NO_BUNDLES}"
    elif settings.repository is not None:
        for name, versions in wanted(found, settings.models).items():
            if not versions:
                yield f"{folder}: has no bundle {name}"


def missing_device(settings: ServiceSettings) -> Iterator[str]:
    """That the device is not here; asked of a process of its own, for the server does without torch."""
    if settings.device != "cpu":
        command = [sys.executable, "-m", "rescorer.lm.device", settings.device]
        fault = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if fault:
            yield fault
