"""Owns the command-line options that several training commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import read_normaliser as read_settings
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

BundleOption = Annotated[Path | None, typer.Option(help="Bundle folder, NAME/VERSION or NAME.")]
NGramsOption = Annotated[
    list[Path] | None, typer.Option("--ngram", help="ARPA file or KenLM binary; may be given again.")
]
NeuralsOption = Annotated[
    list[Path] | None,
    typer.Option("--neural", help="Folder of a trained network or its run; again for more."),
]
ShareOption = Annotated[
    list[str] | None,
    typer.Option(
        help="λ of a model in the mixture, NAME=SHARE such as ngram=0.4; default: the bundle's, else even."
    ),
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]


def read_shares(values: list[str] | None) -> dict[str, float]:
    """``--share`` options by name."""
    return {name: number(value) for name, value in pairs(values or [])}


def pairs(values: list[str]) -> list[tuple[str, str]]:
    """NAME=VALUE options taken apart."""
    for value in values:
        if "=" not in value:
            raise ConfigError(f"{value!r}: expected NAME=VALUE")
    return [tuple(value.split("=", 1)) for value in values]  # type: ignore[misc]


def number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"{value!r} is no number") from None


def read_normaliser(value: str | None) -> Normaliser:
    """The normaliser that ``--normaliser`` names; raises as ``rescorer.bundle.read_normaliser``."""
    if value is None:
        return Normaliser()
    if value == "raw":
        return Normaliser(NormaliserSettings.raw())
    return read_settings(Path(value))
