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
from rescorer.service.contradictions import find_contradictions
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
"""Expected values, by prefix of pydantic's error type; the longest matching prefix is used."""


def describe_expected(error: Mapping[str, Any]) -> str:
    """Describe the expected value, using our own message if there is one and pydantic's otherwise."""
    kinds = [kind for kind in EXPECTED if error["type"].startswith(kind)]
    if not kinds:
        return str(error["msg"])
    return "expected " + EXPECTED[max(kinds, key=len)].format(**error.get("ctx", {}))


def load_settings(config: Path | str | None = None, **arguments: Any) -> ServiceSettings:
    """Load settings from arguments, the environment, a TOML file and defaults, in this order of precedence.

    Args:
        config: the TOML file; None: the one that RESCORER_CONFIG names, if any.
        arguments: settings by name; None counts as not given.

    Raises:
        ConfigError: If settings are unknown, wrong or contradict each other; the message lists all of them.
    """
    return check_settings(gather(ServiceSettings, config, arguments))


def check_settings(values: dict[str, list[Given]], check_machine: bool = False) -> ServiceSettings:
    """Build settings from values by name, each list with the effective value first.

    Args:
        check_machine: also require the bundles and the device to be available on this machine. They are
            always checked if something else is wrong, so that all errors are reported at once.

    Raises:
        ConfigError: see ``load_settings``.
        BundleError: If bundles are missing and nothing else is wrong.
    """
    chosen = effective(values)
    errors = []
    try:
        settings = ServiceSettings(**chosen)
    except ValidationError as invalid:
        for error in invalid.errors():
            name, message = str(error["loc"][0]), f"{error['input']!r}; {describe_expected(error)}"
            if error["type"] == "extra_forbidden":
                message = unknown_setting(name, list(ServiceSettings.model_fields))
            errors.append(f"{name} ({values[name][0].origin}): {message}")
            chosen.pop(name, None)
        settings = ServiceSettings(**chosen)
    errors += find_contradictions(settings)
    if errors or check_machine:
        errors += missing_device(settings)
        missing = list(missing_bundles(settings))
        if errors:
            raise ConfigError(format_errors("service settings", errors + missing))
        if missing:
            raise BundleError(format_errors("bundles", missing))
    return settings


def format_errors(subject: str, errors: Sequence[str]) -> str:
    """Format a single error on the same line as the subject, several errors on one line each."""
    return f"{subject}: {errors[0]}" if len(errors) == 1 else "\n  ".join([f"{subject}:", *errors])


def missing_bundles(settings: ServiceSettings) -> Iterator[str]:
    """Yield what is missing in the folder of models; the bundles themselves are checked when they are
    loaded."""
    # Imported only if the settings are otherwise right, because it imports numpy, which is slow.
    from rescorer.service.models.discovery import NO_BUNDLES, find_versions, select_versions

    folder = settings.repository or settings.bundle
    if folder is None:
        return
    try:
        found, unreadable = find_versions(folder, single=settings.repository is None)
    except BundleError as error:
        yield str(error)
        return
    if not found:
        yield from unreadable.values() or [f"{folder}: {NO_BUNDLES}"]
    elif settings.repository is not None:
        for model, versions in select_versions(found, settings.models).items():
            if not versions:
                yield unreadable.get(model.split("/")[0]) or f"{folder}: has no bundle {model}"


def missing_device(settings: ServiceSettings) -> Iterator[str]:
    """Yield an error if the device is not available; a separate process checks this, so that the server need
    not import torch."""
    if settings.device != "cpu":
        command = [sys.executable, "-m", "rescorer.lm.device", settings.device]
        error = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if error:
            yield error
