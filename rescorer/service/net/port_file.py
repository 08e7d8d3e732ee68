"""Write the server's port to a file, for scripts that start a server."""

from __future__ import annotations

from pathlib import Path

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io.targets import remove_file
from rescorer.formats.io.text_io import write_text


def write_port(path: Path, port: int) -> None:
    """Write the file atomically, since scripts wait for it.

    Raises:
        ConfigError: If the file cannot be written.
    """
    try:
        write_text(path, f"{port}\n")
    except FormatError as error:
        raise ConfigError(f"port_file {path} {error.message}") from None


def remove_port(path: Path) -> None:
    """Remove the file if it exists, though not a device or pipe; raises ConfigError if that fails."""
    try:
        remove_file(path)
    except OSError as error:
        raise ConfigError(f"port_file {path} cannot be removed: {error.strerror}") from None
