"""Owns the command ``rescorer-train run``: a recipe in, a bundle and its report out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from rescorer_training.cli.options import DeviceOption
from rescorer_training.recipe.config import shipped_recipes


def run(
    recipe: Annotated[str, typer.Argument(help=f"{', '.join(shipped_recipes())}, or a TOML file.")],
    data: Annotated[Path, typer.Option(help="Folder that the recipe's texts are below.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of everything that is made.")],
    device: DeviceOption = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """From raw text to a verified bundle and a one-page report, in one command.

    What is there already is not made again, and a killed network goes on where it stopped: run the same
    command again. Recipes are flat TOML files with comments; copy one to change it.

    Example: rescorer-train run ptb --data ~/text -o ptb
    """
    from rescorer_training.recipe.config import read_recipe
    from rescorer_training.recipe.report import REPORT
    from rescorer_training.recipe.run import run_recipe  # torch takes seconds to import

    report = run_recipe(read_recipe(recipe), data, output, device=device, threads=threads)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        Console().print(Markdown((output / REPORT).read_text(encoding="utf-8")))
