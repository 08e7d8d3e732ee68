"""Owns the command ``rescorer inspect``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rescorer.bundle import read_normaliser
from rescorer.cli.options import (
    FirstPassOption,
    FormatOption,
    GroupsOption,
    MapOption,
    StreamOption,
    WeightOption,
    WeightsOption,
    chosen_weights,
    named_numbers,
)
from rescorer.cli.output import NAMED_IN_JSON, Rejections
from rescorer.cli.scoring_options import (
    CharactersOption,
    CountingOption,
    FragmentsOption,
    OptionalWordsOption,
    ReferenceOption,
    lists_reader,
)
from rescorer.errors import ConfigError
from rescorer.evaluation.error_rate.counting import Counting
from rescorer.evaluation.inspection import audit
from rescorer.evaluation.inspection.models import ModelTally
from rescorer.evaluation.inspection.render import render
from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser

SUSPICIOUS = 1
PIPE_WIDTH = 120


def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="N-best lists.")],
    reference: ReferenceOption = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            "-b",
            help="Also compare with this bundle: words that it does not know, its n-gram beside the "
            "scores of the lists, what its weights would do.",
        ),
    ] = None,
    first_pass: FirstPassOption = None,
    normaliser: Annotated[
        Path | None, typer.Option(help="Normaliser settings, JSON; default: the bundle's, or lower case.")
    ] = None,
    maps: MapOption = None,
    streams: StreamOption = None,
    format_: FormatOption = None,
    groups: GroupsOption = None,
    weights: WeightsOption = "default",
    weight: WeightOption = None,
    counting: CountingOption = "levenshtein",
    characters: CharactersOption = False,
    optional_words: OptionalWordsOption = False,
    fragments: FragmentsOption = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Plain keys; rates in percent.")] = False,
) -> None:
    """Audit lists before anyone trusts them: what is in them, and what looks wrong.

    Example: rescorer inspect demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx

    Exit code 1 says that something is probably wrong, or that some lists were rejected.
    """
    if bundle is None and (weights != "default" or weight):
        raise ConfigError("--weights and --weight are of a bundle: give --bundle")
    how = Counting(counting, characters, optional_words, fragments)
    lists_in = lists_reader(reference, maps, streams, groups, format_)
    first = named_numbers(first_pass) if first_pass else None
    rescorer = Rescorer.load(bundle, device) if bundle else None
    default = rescorer.bundle.normaliser if rescorer else Normaliser()
    words = read_normaliser(normaliser) if normaliser else default
    rejected: dict[str, Rejections] = {file: Rejections() for file in files}
    audits = {}
    for file in files:
        models = None
        if rescorer:
            models = ModelTally(rescorer, chosen_weights(dict(rescorer.bundle.weights), weights, weight))
        audits[file] = audit(
            lists_in(file),
            words,
            models=models,
            first_pass=first,
            counting=how,
            told=rejected[file].add,
        )
        rejected[file].tell(NAMED_IN_JSON)
    if as_json:
        records = {
            file: each.to_dict() | {"rejected_lists": rejected[file].reasons} for file, each in audits.items()
        }
        record = next(iter(records.values())) if len(records) == 1 else {"files": records}
        typer.echo(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(render(audits))
    if any(each.suspicious or each.facts.rejected for each in audits.values()):
        raise typer.Exit(SUSPICIOUS)
