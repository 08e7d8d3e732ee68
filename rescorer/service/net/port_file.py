"""Write the server's port to a file, for scripts that start a server."""

from __future__ import annotations

import os
from pathlib import Path

from rescorer.errors import ConfigError


def write_port(path: Path, port: int) -> None:
    """Write the file atomically, since scripts wait for it.

    Raises:
        ConfigError: If the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(f"{port}\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"port_file {path} cannot be written: {error.strerror}") from None


def remove_port(path: Path) -> None:
    """Remove the file if it exists; raises ConfigError if that fails."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"port_file {path} cannot be removed: {error.strerror}") from None
