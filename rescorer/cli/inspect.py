"""Owns the command ``rescorer inspect``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rescorer.bundle import load_bundle, read_normaliser
from rescorer.cli.options import (
    FirstPassOption,
    FormatOption,
    GroupsOption,
    MapOption,
    StreamOption,
    lists_from,
    named_numbers,
    with_references,
)
from rescorer.evaluation.audit import audit
from rescorer.evaluation.audit_report import render
from rescorer.evaluation.counting import Counting
from rescorer.formats.references import read_references
from rescorer.text import Normaliser

SUSPICIOUS = 1
PIPE_WIDTH = 120


def inspect(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="N-best lists.")],
    reference: Annotated[
        str | None, typer.Option(help="What was said, by id: `words (id)`, id<TAB>text or JSON lines.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", "-b", help="Tell the words that this bundle does not know.")
    ] = None,
    first_pass: FirstPassOption = None,
    normaliser: Annotated[
        Path | None, typer.Option(help="Normaliser settings, JSON; default: the bundle's, or lower case.")
    ] = None,
    maps: MapOption = None,
    streams: StreamOption = None,
    format_: FormatOption = None,
    groups: GroupsOption = None,
    characters: Annotated[
        bool, typer.Option("--characters", help="Count errors in characters, spaces left out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Plain keys; rates in percent.")] = False,
) -> None:
    """Audit lists before anyone trusts them: what is in them, and what looks wrong.

    Example: rescorer inspect demo/lists.jsonl.gz --bundle models/starter/1

    Exit code 1 says that something is probably wrong, or that some lists were rejected.
    """
    models = load_bundle(bundle) if bundle else None
    known = models.models[models.ngram].vocabulary() if models else None
    default = models.normaliser if models else Normaliser()
    words = read_normaliser(normaliser) if normaliser else default
    first = named_numbers(first_pass) if first_pass else None
    counting = Counting(characters=characters)
    references = read_references(reference) if reference else {}
    audits = {
        file: audit(
            with_references(lists_from(file, maps, streams, groups, format_), references),
            words,
            known=known,
            first_pass=first,
            counting=counting,
            told=lambda fault: typer.echo(f"rejected: {fault}", err=True),
        )
        for file in files
    }
    if as_json:
        records = {file: each.to_dict() for file, each in audits.items()}
        record = next(iter(records.values())) if len(records) == 1 else {"files": records}
        typer.echo(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(render(audits))
    if any(each.suspicious or each.facts.rejected for each in audits.values()):
        raise typer.Exit(SUSPICIOUS)
