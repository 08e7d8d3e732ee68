"""Owns the command ``rescorer-train bundle``: trained models in, a verified bundle out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rescorer.bundle import read_bundle
from rescorer.errors import ConfigError
from rescorer.types import Weights
from rescorer_training.cli.options import NormaliserOption, number, pairs, read_normaliser


def bundle(
    output: Annotated[Path, typer.Argument(help="Folder to make, NAME/VERSION: models/starter/1.")],
    validation: Annotated[Path, typer.Option(help="Text that λ are fitted on.")],
    ngram: Annotated[Path | None, typer.Option(help="ARPA file or KenLM binary.")] = None,
    neural: Annotated[Path | None, typer.Option(help="Folder of a trained network: RUN/best.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Text to measure; may be given again.")] = None,
    normaliser: NormaliserOption = None,
    stream: Annotated[
        list[str] | None, typer.Option(help="Weight of a score stream, NAME=WEIGHT; default acoustic=1.")
    ] = None,
    lm_weight: Annotated[float, typer.Option(help="Weight of the mixture's log-probability.")] = 1.0,
    word: Annotated[float, typer.Option(help="Added once a word.")] = 0.0,
    oov: Annotated[float, typer.Option(help="Added once a word that the n-gram does not know.")] = 0.0,
    weight_set: Annotated[
        list[Path] | None, typer.Option(help="JSON file of further weights to offer; may be given again.")
    ] = None,
    half: Annotated[bool, typer.Option(help="Store the network in half precision.")] = False,
    note: Annotated[
        list[str] | None, typer.Option(help="KEY=TEXT for the manifest: commands, text, licence.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> None:
    """Publish trained models as a bundle that rescorer can serve.

    Example: rescorer-train bundle models/mine/1 --ngram mine.arpa.gz --neural runs/lstm/best --validation
    valid.txt
    """
    from rescorer_training.recipe.bundle_export import (  # torch takes seconds to import
        BundleParts,
        make_bundle,
    )

    if not output.name.isdecimal():
        raise ConfigError(f"{output}: the last part is the version, a number: {output}/1")
    streams = {name: number(value) for name, value in pairs(stream or ["acoustic=1"])}
    parts = BundleParts(
        name=output.parent.name,
        version=int(output.name),
        ngram=ngram,
        neural=neural,
        normaliser=read_normaliser(normaliser),
        weights=Weights("default", streams, {"mixture": lm_weight}, word, oov),
        validation=validation,
        tests={path.name.split(".")[0]: path for path in test or []},
        weight_sets=weight_set or (),
        half=half,
        facts=dict(pairs(note or [])),
    )
    manifest = make_bundle(parts, output)
    shares = read_bundle(output).weights["default"].mixture  # verified by reading it back
    if as_json:
        typer.echo(json.dumps(manifest, indent=2, ensure_ascii=False))
    else:
        Console().print(table(manifest, shares))


def table(manifest: dict[str, Any], shares: Mapping[str, float]) -> Table:
    """Perplexities by text and model."""
    names = [*manifest["models"], "mixture"]
    lambdas = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
    out = Table(title=f"{manifest['name']}/{manifest['version']}: perplexity (λ: {lambdas})")
    for column in ("text", "tokens", "unknown"):
        out.add_column(column, justify="left" if column == "text" else "right")
    for name in names:
        out.add_column(name, justify="right")
    for facts in manifest["measured"].values():
        values = [f"{facts['perplexity'][name]:.2f}" for name in names]
        out.add_row(facts["text"], f"{facts['tokens']:,}", f"{facts['unknown_words']:,}", *values)
    return out
