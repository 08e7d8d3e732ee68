"""The command ``rescorer inspect``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.inputs import RankedListOptions
from rescorer.cli.options.models import DeviceOption
from rescorer.cli.options.weights import WeightOptions
from rescorer.cli.output import SEE_JSON, Rejections
from rescorer.cli.render.evaluation.inspection import render_inspections
from rescorer.cli.render.tables import print_out
from rescorer.errors import ConfigError
from rescorer.evaluation.inspection.inspect import Inspection, inspect_lists
from rescorer.evaluation.inspection.models import ModelTally
from rescorer.pipeline import Rescorer

SUSPICIOUS = 1
"""Exit code if something is probably wrong."""


@expand_options
def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="N-best lists.")],
    *,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            "-b",
            help="Model bundle to compare with: words that it does not know, its n-gram against the scores "
            "of the lists, and the effect of its weights.",
        ),
    ] = None,
    options: RankedListOptions,
    device: DeviceOption = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a list `files`; rates in percent.")
    ] = False,
) -> None:
    """Report what lists contain and what looks wrong with them, before they are used.

    Example: rescorer inspect demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx

    Several files are reported one by one; a folder of jobs is one. Exit code 1 means that something is
    probably wrong, or that some lists were rejected.
    """
    if bundle is None and options.weights != WeightOptions():
        raise ConfigError("--weights and --weight apply to a bundle: give --bundle")
    counting = options.counting.settings()
    read_lists = options.make_reader(warn_of_markup=False)  # a finding says it
    first_pass = options.parse_first_pass()
    rescorer = Rescorer.load(bundle, device) if bundle else None
    words = options.text.make_normaliser(rescorer.bundle if rescorer else None)
    rejected = {file: Rejections() for file in files}
    inspections: dict[str, Inspection] = {}
    for file in files:
        models = None
        if rescorer:
            models = ModelTally(rescorer, options.weights.resolve(rescorer.bundle.weights))
        inspections[file] = inspect_lists(
            read_lists(file),
            words,
            models=models,
            first_pass=first_pass,
            counting=counting,
            on_rejected=rejected[file].add,
        )
        rejected[file].report(SEE_JSON)
    if as_json:
        records = [
            {"file": file, **inspection.to_dict(), "rejected_lists": rejected[file].reasons}
            for file, inspection in inspections.items()
        ]
        typer.echo(json.dumps({"files": records}, indent=2, ensure_ascii=False))
    else:
        print_out(render_inspections(inspections))
    if any(inspection.suspicious or inspection.lists.rejected for inspection in inspections.values()):
        raise typer.Exit(SUSPICIOUS)
