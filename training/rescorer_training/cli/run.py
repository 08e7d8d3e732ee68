"""The command ``rescorer-train run``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError
from rescorer_training.cli.options import DeviceOption, ThreadsOption
from rescorer_training.recipe.config import list_shipped_recipes, load_recipe_file

if TYPE_CHECKING:
    from rescorer_training.recipe.report import Report


def run(
    recipe: Annotated[
        str, typer.Argument(help=f"Recipe to follow: {', '.join(list_shipped_recipes())}, or a TOML file.")
    ],
    data: Annotated[Path | None, typer.Option(help="Folder that contains the recipe's texts.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write models, bundle and report into.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the recipe instead, to copy it.")] = False,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Follow a recipe from raw text to a verified bundle and a one-page report.

    To continue an interrupted run, repeat the command: finished steps are skipped, and the training of a
    network continues where it stopped. Recipes are commented TOML files; to change one, edit a copy (--show)
    and give the path of the copy.

    Example: rescorer-train run ptb --data ~/text -o ptb
    """
    if show:
        typer.echo(load_recipe_file(recipe)[1], nl=False)
        return
    if data is None or output is None:
        raise ConfigError("a run needs --data, the folder of the texts, and --output (-o)")
    # deferred, because importing torch takes seconds
    from rescorer_training.recipe.config import read_recipe
    from rescorer_training.recipe.report import REPORT_FILE
    from rescorer_training.recipe.run import run_recipe

    report = run_recipe(read_recipe(recipe), data, output, device=device, threads=threads)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        print_report(report, output / REPORT_FILE)


def print_report(report: Report, file: Path) -> None:
    """Print the table of models, how unknown words were counted, and where the report is."""
    from rescorer_training.recipe.report import table_cells

    header, *rows = table_cells(report)
    table = FoldingTable(*header, title=report.title)
    for row in rows:
        table.add_row(*row)
    print_out(table, report.unknown, f"report: {file}")
