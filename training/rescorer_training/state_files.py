"""Saved states of training runs: safetensors files with options and progress, replaced atomically."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
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
    advice = "The previous version is unchanged: free disk space, then continue from it with --resume"
    if not path.exists():
        advice = "Free disk space, then start again"
    return f"{path} cannot be written at {position}: {error}. {advice}"


def read_state_file(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read metadata and tensors; raises BundleError if the file is damaged."""
    with _open_state_file(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return file.metadata(), tensors


def read_metadata(path: Path) -> dict[str, str]:
    """Read metadata alone; raises BundleError if the file is damaged."""
    with _open_state_file(path) as file:
        metadata: dict[str, str] = file.metadata()
        return metadata


@contextmanager
def _open_state_file(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise BundleError(
            f"{path} is damaged: {error}; restore a copy of it, or start the run again in another folder"
        ) from None


def check_options(path: Path, saved: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise ConfigError if an option that must not change has changed.

    An option that is missing equals None: newer versions have options that a saved state does not know.
    """
    if changes := describe_changes(saved, options, CHANGEABLE_OPTIONS):
        raise ConfigError(f"{path}: the run was started with other options: {changes}")


def describe_changes(
    saved: Mapping[str, Any],
    options: Mapping[str, Any],
    ignored: Collection[str] = (),
    *,
    known_to_both: bool = False,
) -> str:
    """Describe which options differ from the saved ones, ``x was 1, is 2``; empty if none does.

    Args:
        ignored: names of options that may differ.
        known_to_both: leave out options that only one of them has, as after a change of version.
    """
    before, now = _flatten(saved), _flatten(options)
    names = before.keys() & now.keys() if known_to_both else before.keys() | now.keys()
    changed = sorted(name for name in names - {*ignored} if before.get(name) != now.get(name))
    return ", ".join(f"{name} was {before.get(name)}, is {now.get(name)}" for name in changed)


def _flatten(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those of groups such as ``network`` among the others."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        flat |= _flatten(value) if isinstance(value, Mapping) else {name: value}
    return flat
