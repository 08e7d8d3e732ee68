"""Save and read the states of training runs, and lock their folders.

A state is a safetensors file of tensors, with the options and the progress of the run as JSON in its
metadata. A new state replaces the previous one atomically, so that a killed run always leaves a complete one.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, ScoringError

logger = logging.getLogger(__name__)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let no other process of this machine train in a folder within the context.

    The kernel keeps the lock, so none is left if the process is killed. Reading the folder needs no lock.
    On a file system without locks, a warning says that nothing is kept out.

    Raises:
        ConfigError: another process trains there, or there is no such folder.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be opened as the folder of a run: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"{folder}: another process is training there; wait until it has ended, or choose another folder"
        ) from None
    except OSError as error:  # some network file systems have no locks of folders
        logger.warning(
            "%s: cannot be locked (%s); let no other process train there", folder, error.strerror or error
        )
    try:
        yield
    finally:
        os.close(descriptor)


CHANGEABLE_OPTIONS = {"epochs", "patience"}
"""Options that may be changed when a run is resumed; all others must stay the same."""


def write_state_file(
    path: Path,
    tensors: Mapping[str, Tensor],
    options: Mapping[str, Any],
    progress: Mapping[str, Any],
    position: str,
) -> None:
    """Write a state, replacing the previous one atomically.

    Args:
        options: options of the run, as plain data.
        progress: progress of the run, as plain data.
        position: position of the run, for the error message if writing fails: ``step 100``.

    Raises:
        ScoringError: writing fails, for example because the disk is full. The previous file is unchanged.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
        save_file(contiguous, partial, {"options": json.dumps(options), "progress": json.dumps(progress)})
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise ScoringError(describe_write_error(path, error, position)) from None


def describe_write_error(path: Path, error: Exception, position: str) -> str:
    """Describe why a file could not be written, at which ``position`` of the run, and a remedy."""
    advice = "The previous version is unchanged: free disk space, then continue from it with --resume"
    if not path.exists():
        advice = "Free disk space, then start again"
    return f"{path} cannot be written at {position}: {error}. {advice}"


def read_state_file(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the metadata and the tensors of a state; raises BundleError if the file is damaged."""
    with _open_state_file(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return file.metadata(), tensors


def read_options(path: Path) -> dict[str, Any]:
    """Read only the options of a state.

    Raises:
        BundleError: the file is damaged.
        KeyError, TypeError, ValueError: the file is not the state of a run.
    """
    with _open_state_file(path) as file:
        options: dict[str, Any] = json.loads(file.metadata()["options"])
        return options


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

    A missing option counts as None, because a state that an older version saved lacks the newer options.
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
    """Describe the options that differ from the saved ones, such as ``x was 1, is 2``. Empty if none does.

    Args:
        ignored: names of options that may differ.
        known_to_both: compare only options that both mappings have: another version may have saved them.
    """
    before, now = _flatten(saved), _flatten(options)
    names = before.keys() & now.keys() if known_to_both else before.keys() | now.keys()
    changed = sorted(name for name in names - {*ignored} if before.get(name) != now.get(name))
    return ", ".join(f"{name} was {before.get(name)}, is {now.get(name)}" for name in changed)


def _flatten(options: Mapping[str, Any]) -> dict[str, Any]:
    """Put the options of nested groups, such as ``network``, on the same level as the others."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        flat |= _flatten(value) if isinstance(value, Mapping) else {name: value}
    return flat
