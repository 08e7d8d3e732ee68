"""Saved states of training runs: safetensors files with options and progress, replaced atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, ScoringError

CHANGEABLE_OPTIONS = {"epochs", "patience"}
"""Options that may be changed when a run is resumed; all others must stay the same."""


def write_state_file(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], position: str
) -> None:
    """Write tensors and metadata to a file that is replaced atomically.

    Args:
        position: position of the run, for the message if writing fails: ``step 100``.

    Raises:
        ScoringError: writing fails, for example because the disk is full; the previous file is unchanged.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
        save_file(contiguous, partial, metadata)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise ScoringError(describe_write_error(path, error, position)) from None


def describe_write_error(path: Path, error: Exception, position: str) -> str:
    """Say at which position of a run a file could not be written, and what to do."""
    return (
        f"{path} cannot be written at {position}: {error}. The previous version is unchanged: free disk "
        f"space, then continue from it with --resume"
    )


def read_state_file(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read metadata and tensors; raises BundleError if the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return file.metadata(), tensors
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{path} is damaged: {error}") from None


def check_options(path: Path, saved: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise ConfigError if an option that must not change has changed.

    An option that is missing equals None: newer versions have options that a saved state does not know.
    """
    before, now = _flatten(saved), _flatten(options)
    changed = sorted(name for name in before | now if before.get(name) != now.get(name))
    if changed:
        changes = ", ".join(f"{name} was {before.get(name)}, is {now.get(name)}" for name in changed)
        raise ConfigError(f"{path}: the run was started with other options: {changes}")


def _flatten(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that must not change, those of groups such as ``network`` beside the others."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value)
        elif name not in CHANGEABLE_OPTIONS:
            flat[name] = value
    return flat
