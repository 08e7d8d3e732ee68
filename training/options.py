"""Owns the command-line options that several training commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import read_normaliser as read_settings
from rescorer.text import Normaliser, NormaliserSettings

NormaliserOption = Annotated[
    str | None,
    typer.Option(
        "--normaliser",
        help="A JSON file of normaliser settings, or 'raw' for text whose tokens are settled. Default: lower "
        "case, no punctuation, fillers dropped.",
    ),
]


def read_normaliser(value: str | None) -> Normaliser:
    """The normaliser that ``--normaliser`` names; raises as ``rescorer.bundle.read_normaliser``."""
    if value is None:
        return Normaliser()
    if value == "raw":
        return Normaliser(NormaliserSettings.raw())
    return read_settings(Path(value))
