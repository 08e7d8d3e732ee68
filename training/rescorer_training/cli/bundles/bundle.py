"""The command ``rescorer-train bundle``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.bundle import read_bundle
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError
from rescorer.types import Weights
from rescorer_training.cli.options import NormaliserOption, parse_number, parse_pairs, parse_shares
from rescorer_training.data.normalisation import choose_normaliser

NamedNGramsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]FILE",
        help="ARPA file, n-gram table or KenLM binary; repeat for more, named ngram, ngram2, … unless a "
        "name is given. Words that the first one does not know are the unknown ones.",
    ),
]
NamedNetworksOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]FOLDER",
        help="Folder of a trained network or of its run; repeat for more, named neural, neural2, … "
        "unless a name is given.",
    ),
]
SharesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=WEIGHT",
        help="Interpolation weight λ of a model in the mixture; repeat for each model. 0 alone leaves a "
        "model out, and the λ of the others are fitted. Default: all fitted.",
    ),
]
StreamsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=WEIGHT",
        help="Weight of a score stream; repeat for more. Default: acoustic=1.",
    ),
]
RerankersOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of a reranker that was trained with these models, to include; repeat for more.",
    ),
]
NotesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=TEXT",
        help="Note for the manifest, such as commands, text or licence; repeat for more.",
    ),
]


def bundle(
    output: Annotated[
        Path, typer.Argument(help="Folder to write, NAME/VERSION with a numeric version: models/starter/1.")
    ],
    validation: Annotated[
        Path, typer.Option(help="Held-out text on which to fit the interpolation weights λ.")
    ],
    ngram: NamedNGramsOption = None,
    neural: NamedNetworksOption = None,
    share: SharesOption = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="Text on which to measure perplexities for the manifest; repeat for more."),
    ] = None,
    normaliser: NormaliserOption = None,
    stream: StreamsOption = None,
    lm_weight: Annotated[float, typer.Option(help="Weight of the mixture's log-probability.")] = 1.0,
    word: Annotated[float, typer.Option(help="Word insertion penalty: score added per word.")] = 0.0,
    oov: Annotated[
        float, typer.Option(help="Score added per word that the n-gram model does not know.")
    ] = 0.0,
    weight_set: Annotated[
        list[Path] | None, typer.Option(help="JSON file of a further weight set to include; repeat for more.")
    ] = None,
    reranker: RerankersOption = None,
    tables: Annotated[
        bool,
        typer.Option(
            help="Store n-grams as tables instead of ARPA files: larger, but opened at once and shared by "
            "the workers of a server."
        ),
    ] = False,
    half: Annotated[bool, typer.Option(help="Store networks in half precision.")] = False,
    note: NotesOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> None:
    """Publish trained models as a bundle that rescorer can serve.

    Example: rescorer-train bundle models/mine/1 --ngram mine.arpa.gz --neural runs/lstm/best --validation
    valid.txt
    """
    # deferred, because importing torch takes seconds
    from rescorer_training.evaluation.model_set import resolve_model_folder
    from rescorer_training.recipe.bundles.export import BundleParts, make_bundle
    from rescorer_training.recipe.bundles.models import name_models

    if not output.name.isdecimal():
        raise ConfigError(f"{output}: the last part of the path must be a version number, such as {output}/1")
    streams = {name: parse_number(value) for name, value in parse_pairs(stream or ["acoustic=1"])}
    ngrams = name_models("ngram", ngram or [])
    networks = {n: resolve_model_folder(path) for n, path in name_models("neural", neural or []).items()}
    parts = BundleParts(
        name=output.parent.name,
        version=int(output.name),
        ngrams=ngrams,
        networks=networks,
        normaliser=choose_normaliser(normaliser, [*ngrams.values(), *networks.values()]),
        weights=Weights("default", streams, {"mixture": lm_weight}, word, oov, parse_shares(share)),
        validation=validation,
        tests={path.name.split(".")[0]: path for path in test or []},
        weight_sets=weight_set or (),
        rerankers=reranker or (),
        tables=tables,
        half=half,
        facts=dict(parse_pairs(note or [])),
    )
    manifest = make_bundle(parts, output)
    shares = read_bundle(output).weights["default"].mixture  # also verifies that the bundle loads
    if as_json:
        typer.echo(json.dumps(manifest, indent=2, ensure_ascii=False))
    else:
        print_out(make_table(manifest, shares))


def make_table(manifest: dict[str, Any], shares: Mapping[str, float]) -> FoldingTable:
    """Make a table of perplexities with one row per text and one column per model."""
    names = [*manifest["models"], "mixture"]
    weights = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
    title = f"{manifest['name']}/{manifest['version']}: perplexity (λ: {weights})"
    table = FoldingTable("text", "tokens", "unknown", *names, title=title)
    for facts in manifest["measured"].values():
        values = [f"{facts['perplexity'][name]:.2f}" for name in names]
        table.add_row(facts["text"], f"{facts['tokens']:,}", f"{facts['unknown_words']:,}", *values)
    return table
