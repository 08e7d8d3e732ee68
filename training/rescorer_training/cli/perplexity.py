"""Owns the command ``rescorer-train perplexity``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rescorer_training.cli.options import (
    BundleOption,
    DeviceOption,
    NeuralsOption,
    NGramsOption,
    NormaliserOption,
    ShareOption,
    read_normaliser,
    read_shares,
)
from rescorer_training.data.corpus import sentences
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.perplexity import TextPerplexity, measure
from rescorer_training.evaluation.token_scores import score_tokens


def perplexity_command(
    texts: Annotated[
        list[Path], typer.Argument(help="Text, one sentence a line, gzip or plain; a row each.")
    ],
    bundle: BundleOption = None,
    ngram: NGramsOption = None,
    neural: NeuralsOption = None,
    share: ShareOption = None,
    validation: Annotated[Path | None, typer.Option(help="Fit λ on this text instead, by EM.")] = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Perplexity of text under any models and their mixture, </s> counted.

    Words that a model lacks are treated in three ways, side by side. shared: as in a bundle, a word that
    only another model knows has its part of <unk>, so that all figures of the table compare. counted: every
    unknown word is <unk>, as KenLM's query and most papers count. excluded: tokens that all models know.

    A network trained with its state carried over sentence ends goes through each text in its order.

    Example: rescorer-train perplexity test.txt --ngram kn5.arpa.gz --neural runs/lstm --validation valid.txt
    """
    normalise = read_normaliser(normaliser) if normaliser else None
    models = load_models(
        bundle, ngram or (), neural or (), normaliser=normalise, shares=read_shares(share), device=device
    )

    def scored(path: Path):  # type: ignore[no-untyped-def]
        words = list(sentences([path], models.normaliser))
        return score_tokens(models.models, words, f"scoring {path.name}", in_order=True)

    shares = fit_mixture(scored(validation).log_probs) if validation and models.shares else models.shares
    measured = {str(path): measure(scored(path), shares) for path in texts}
    if as_json:
        facts = {path: asdict(each) for path, each in measured.items()}
        typer.echo(json.dumps({"shares": dict(shares), "texts": facts}))
        return
    for path, each in measured.items():
        Console().print(table(path, each))
    if shares:
        typer.echo("λ: " + ", ".join(f"{name} {value:.3f}" for name, value in shares.items()))


def table(path: str, measured: TextPerplexity) -> Table:
    """A row a model, a column a treatment of unknown words."""
    title = f"{path}: {measured.n_sentences:,} sentences, {measured.n_tokens:,} tokens"
    title += f", {measured.n_excluded:,} excluded" if measured.n_excluded else ""
    out = Table(title=title, title_justify="left")
    for column in ("model", "unknown", "shared", "counted", "excluded"):
        out.add_column(column, justify="left" if column == "model" else "right")
    for name, each in measured.models.items():
        values = (each.shared, each.counted, each.excluded)
        numbers = ("–" if value is None else f"{value:,.2f}" for value in values)
        out.add_row(name, f"{each.n_unknown:,}", *numbers)
    return out
