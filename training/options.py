"""Owns the command-line options that several training commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rescorer.errors import ConfigError
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
    """The normaliser that ``--normaliser`` names; raises ConfigError where the file cannot be used."""
    if value is None:
        return Normaliser()
    if value == "raw":
        return Normaliser(NormaliserSettings.raw())
    try:
        settings = json.loads(Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ConfigError(f"--normaliser {value}: cannot be read as JSON settings: {fault}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"--normaliser {value}: expected an object of settings")
    return Normaliser(NormaliserSettings.from_dict(settings))
