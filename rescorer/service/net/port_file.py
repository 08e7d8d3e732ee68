"""Owns the file in which a server tells its port."""

from __future__ import annotations

import os
from pathlib import Path

from rescorer.errors import ConfigError


def write_port(path: Path, port: int) -> None:
    """Whole or not at all, for a script that waits for the file."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(f"{port}\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as fault:
        raise ConfigError(f"port_file {path} cannot be written: {fault.strerror}") from None


def remove_port(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as fault:
        raise ConfigError(f"port_file {path} cannot be removed: {fault.strerror}") from None
