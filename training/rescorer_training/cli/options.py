"""Command-line options that several commands share, and parsers of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.errors import ConfigError

NormaliserOption = Annotated[
    str | None,
    typer.Option(
        "--normaliser",
        metavar="FILE|raw",
        help="JSON file of normaliser settings, or 'raw' for text that is already normalised. Default: the "
        "one recorded with the given models; without one, words without case and punctuation.",
    ),
]
TextsArgument = Annotated[
    list[Path], typer.Argument(help="Training texts, one sentence per line; gzip or plain; - for a pipe.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Random seed.")]
ResumeOption = Annotated[bool, typer.Option(help="Continue an interrupted run where it stopped.")]
DeviceOption = Annotated[str, typer.Option(help="Device to compute on: cpu, cuda, cuda:1, …")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Number of CPU threads. Default: all.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]


def parse_shares(values: list[str] | None) -> dict[str, float]:
    """Parse ``--share`` options into interpolation weights by model name."""
    return {name: parse_number(value) for name, value in parse_pairs(values or [])}


def parse_pairs(values: list[str]) -> list[tuple[str, str]]:
    """Split NAME=VALUE options.

    Raises:
        ConfigError: a value has no ``=``.
    """
    for value in values:
        if "=" not in value:
            raise ConfigError(f"expected NAME=VALUE, got {value!r}")
    return [tuple(value.split("=", 1)) for value in values]  # type: ignore[misc]


def parse_number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"expected a number, got {value!r}") from None
