"""The command ``rescorer-train perplexity``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer_training.cli.models import open_models, score_file
from rescorer_training.cli.options import (
    BundleOption,
    DeviceOption,
    JsonOption,
    NeuralsOption,
    NGramsOption,
    NormaliserOption,
    ShareOption,
)
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.perplexity import TextPerplexity, measure


def perplexity_command(
    texts: Annotated[
        list[Path], typer.Argument(help="Texts to measure, one sentence per line; gzip or plain.")
    ],
    bundle: BundleOption = None,
    ngram: NGramsOption = None,
    neural: NeuralsOption = None,
    share: ShareOption = None,
    validation: Annotated[
        Path | None,
        typer.Option(help="Held-out text on which to fit the interpolation weights λ; overrides --share."),
    ] = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Measure the perplexity of texts under models and their mixture, including </s>.

    The columns differ in how they treat words that a model does not know. shared: as in a bundle, a word that
    only another model knows gets a share of <unk>, so that all numbers of the table are comparable. counted:
    every unknown word counts as <unk>, as in KenLM's query and most papers. excluded: only tokens that all
    models know.

    A network that was trained to carry its state across sentence boundaries reads each text in order.

    Example: rescorer-train perplexity test.txt --ngram kn5.arpa.gz --neural runs/lstm --validation valid.txt
    """
    models = open_models(bundle, ngram, neural, normaliser=normaliser, device=device, share=share)
    shares = models.shares
    if validation and shares:
        shares = fit_mixture(score_file(models, validation).log_probs)
    measured = {str(path): measure(score_file(models, path), shares) for path in texts}
    if as_json:
        facts = {path: asdict(perplexity) for path, perplexity in measured.items()}
        typer.echo(json.dumps({"shares": dict(shares), "texts": facts}))
        return
    for path, perplexity in measured.items():
        print_out(make_table(path, perplexity))
    if shares:
        print_out("λ: " + ", ".join(f"{name} {value:.3f}" for name, value in shares.items()))


def make_table(path: str, measured: TextPerplexity) -> FoldingTable:
    """Make a table with one row per model and one column per treatment of unknown words."""
    title = f"{path}: {measured.n_sentences:,} sentences, {measured.n_tokens:,} tokens"
    title += f", {measured.n_excluded:,} excluded" if measured.n_excluded else ""
    table = FoldingTable("model", "unknown", "shared", "counted", "excluded", title=title)
    for name, perplexity in measured.models.items():
        values = (perplexity.shared, perplexity.counted, perplexity.excluded)
        numbers = ("–" if value is None else f"{value:,.2f}" for value in values)
        table.add_row(name, f"{perplexity.n_unknown:,}", *numbers)
    return table
