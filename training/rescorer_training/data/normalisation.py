"""Choose the normaliser that training text passes through."""

from __future__ import annotations

from pathlib import Path

from rescorer.bundle import read_normaliser
from rescorer.text import Normaliser, NormaliserSettings


def choose_normaliser(choice: str | None) -> Normaliser:
    """Return the normaliser for ``choice``.

    Args:
        choice: None for the default normaliser, ``raw`` for one that only splits at blanks, or the path of a
            JSON file of normaliser settings.

    Raises:
        BundleError: the file cannot be read or is not a JSON object.
        ConfigError: the file has unknown or invalid settings.
    """
    if choice is None:
        return Normaliser()
    if choice == "raw":
        return Normaliser(NormaliserSettings.raw())
    return read_normaliser(Path(choice))
