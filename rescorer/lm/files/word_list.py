"""Read the word list of a KenLM binary, from which the words cannot be read."""

from __future__ import annotations

from rescorer.errors import BundleError
from rescorer.safe_input.files import Folder

MAX_BYTES = 1 << 28
"""Largest word list: 20 million words of 12 bytes."""


def read_words(folder: Folder, name: str) -> list[str]:
    """Read a word list, one word per line; raise BundleError if it cannot be read."""
    try:
        return folder.read_bytes(name, MAX_BYTES).decode("utf-8").split()
    except UnicodeDecodeError as error:
        raise BundleError(
            f"{folder.path / name}: cannot be read as a word list: not UTF-8 at byte {error.start:,}"
        ) from None
