"""The command ``rescorer-train bundle``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.bundle import read_bundle
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError
from rescorer.evaluation.figures import format_size
from rescorer.types import Weights
from rescorer_training.cli.options import NormaliserOption, parse_number, parse_pairs, parse_shares
from rescorer_training.data.normalisation import choose_normaliser


@dataclass(frozen=True, slots=True)
class BundledModels:
    """Models of the bundle, and how they are interpolated."""

    validation: Annotated[
        Path, typer.Option(help="Held-out text on which to fit the interpolation weights λ.")
    ]
    ngram: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="ARPA file, n-gram table or KenLM binary; repeat for more, named ngram, ngram2, … unless a "
            "name is given. Words that the first one does not know are the unknown ones.",
        ),
    ] = None
    neural: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FOLDER",
            help="Folder of a trained network or of its run; repeat for more, named neural, neural2, … "
            "unless a name is given.",
        ),
    ] = None
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WEIGHT",
            help="Interpolation weight λ of a model in the mixture; repeat for each model. 0 alone leaves a "
            "model out, and the λ of the others are fitted. Default: all fitted.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class DefaultWeights:
    """Values of the weights set ``default``."""

    stream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WEIGHT",
            help="Weight of a score stream; repeat for more. Default: acoustic=1.",
        ),
    ] = None
    lm_weight: Annotated[float, typer.Option(help="Weight of the mixture's log-probability.")] = 1.0
    word: Annotated[float, typer.Option(help="Word insertion penalty: score added per word.")] = 0.0
    oov: Annotated[float, typer.Option(help="Score added per word that the n-gram model does not know.")] = (
        0.0
    )

    def to_weights(self, shares: Mapping[str, float]) -> Weights:
        """Raises ConfigError if a stream has no number."""
        streams = {name: parse_number(value) for name, value in parse_pairs(self.stream or ["acoustic=1"])}
        return Weights("default", streams, {"mixture": self.lm_weight}, self.word, self.oov, shares)


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """What the bundle has besides models and default weights, and how it is stored."""

    weight_set: Annotated[
        list[Path] | None, typer.Option(help="JSON file of a further weight set to include; repeat for more.")
    ] = None
    reranker: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of a reranker that was trained with these models, to include; repeat for more.",
        ),
    ] = None
    tables: Annotated[
        bool,
        typer.Option(
            help="Store n-grams as tables instead of ARPA files: larger, but opened at once and shared by "
            "the workers of a server."
        ),
    ] = False
    half: Annotated[bool, typer.Option(help="Store networks in half precision.")] = False
    note: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=TEXT",
            help="Note for the manifest, such as commands, text or licence; repeat for more.",
        ),
    ] = None


@expand_options
def bundle(
    output: Annotated[
        Path, typer.Argument(help="Folder to write, NAME/VERSION with a numeric version: models/starter/1.")
    ],
    *,
    models: BundledModels,
    test: Annotated[
        list[Path] | None,
        typer.Option(help="Text on which to measure perplexities for the manifest; repeat for more."),
    ] = None,
    normaliser: NormaliserOption = None,
    weights: DefaultWeights,
    content: ContentOptions,
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
    default = weights.to_weights(parse_shares(models.share))
    ngrams = name_models("ngram", models.ngram or [])
    networks = {
        name: resolve_model_folder(path) for name, path in name_models("neural", models.neural or []).items()
    }
    parts = BundleParts(
        name=output.parent.name,
        version=int(output.name),
        ngrams=ngrams,
        networks=networks,
        normaliser=choose_normaliser(normaliser, [*ngrams.values(), *networks.values()]),
        weights=default,
        validation=models.validation,
        tests={path.name.split(".")[0]: path for path in test or []},
        weight_sets=content.weight_set or (),
        rerankers=content.reranker or (),
        tables=content.tables,
        half=content.half,
        facts=dict(parse_pairs(content.note or [])),
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
        values = [format_size(facts["perplexity"][name]) for name in names]
        table.add_row(facts["text"], f"{facts['tokens']:,}", f"{facts['unknown_words']:,}", *values)
    return table
