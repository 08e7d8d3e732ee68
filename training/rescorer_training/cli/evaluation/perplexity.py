"""The command ``rescorer-train perplexity``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError
from rescorer_training.cli.open_models import open_models, read_words, score_file
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
from rescorer_training.evaluation.model_set import ModelSet
from rescorer_training.evaluation.perplexity import TextPerplexity, measure
from rescorer_training.evaluation.token_scores import TokenScores


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
    cache_words: Annotated[
        int,
        typer.Option(
            min=0,
            help="Also report a neural cache of so many past words, fitted on --validation; 500 to 4,000 are "
            "usual.",
        ),
    ] = 0,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic",
            help="Also report dynamic evaluation, which goes on training on the past of the text, fitted on "
            "--validation.",
        ),
    ] = False,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Measure the perplexity of texts under models and their mixture, including </s>.

    The columns differ in how they treat words that a model does not know. shared: as in a bundle, a word that
    only another model knows gets a share of <unk>, so that all numbers of the table are comparable. counted:
    every unknown word counts as <unk>, as in KenLM's query and most papers. excluded: only tokens that all
    models know.

    Forward and backward models are not mixed; the row "both directions" is the geometric mean of their
    perplexities.

    A network that was trained to carry its state across sentence boundaries reads each text in order. With
    --cache-words or --dynamic, it also learns from what it has read: these figures stand apart, and are not
    to be compared with those of models that do not.

    Example: rescorer-train perplexity test.txt --ngram kn5.arpa.gz --neural runs/lstm --validation valid.txt
    """
    if (cache_words or dynamic) and not validation:
        raise ConfigError("--cache-words and --dynamic need --validation, on which they are fitted")
    models = open_models(bundle, ngram, neural, normaliser=normaliser, device=device, share=share)
    scores = {path: score_file(models, path) for path in dict.fromkeys((*texts, *filter(None, [validation])))}
    shares = models.shares
    if validation and shares:
        shares = fit_mixture(scores[validation].log_probs)
    measured = {str(path): measure(scores[path], shares) for path in texts}
    past = {}
    if validation and (cache_words or dynamic):
        past = measure_past_text(models, scores, validation, cache_words, dynamic=dynamic)
    if as_json:
        facts = {path: asdict(figures) for path, figures in measured.items()}
        typer.echo(json.dumps({"shares": dict(shares), "texts": facts, "past_text": past}))
        return
    for path, figures in measured.items():
        print_out(make_table(path, figures))
    if past:
        print_out(make_past_table(past, texts))
    if shares:
        print_out("λ: " + ", ".join(f"{name} {value:.3f}" for name, value in shares.items()))


def measure_past_text(
    models: ModelSet, scores: Mapping[Path, TokenScores], validation: Path, cache_words: int, *, dynamic: bool
) -> dict[str, dict[str, Any]]:
    """Perplexity of each text, by its path, under each network that learns from the past of the text."""
    from rescorer_training.evaluation.past_text import score_past_texts  # torch takes seconds to import

    texts = {str(path): read_words(models, path) for path in scores}
    others = {str(path): of_text for path, of_text in scores.items()}
    return {
        past.name: {
            "settings": dict(past.settings),
            "perplexity": past.perplexities(),
            "mixture": past.mix_with(others, str(validation)),
        }
        for past in score_past_texts(
            models.models, texts, str(validation), cache_words=cache_words, dynamic=dynamic
        )
    }


def make_past_table(past: dict[str, dict[str, Any]], texts: list[Path]) -> FoldingTable:
    """Make a table with one row per text and network."""
    title = "networks that learn from the past of the text, alone and mixed with the other models"
    table = FoldingTable("network", "text", "perplexity", "mixture", title=title)
    for name, facts in past.items():
        for path in map(str, texts):
            mixture = f"{facts['mixture'][path]:,.2f}" if facts["mixture"] else "–"
            table.add_row(name, path, f"{facts['perplexity'][path]:,.2f}", mixture)
    return table


def make_table(path: str, measured: TextPerplexity) -> FoldingTable:
    """Make a table with one row per model and one column per treatment of unknown words."""
    title = f"{path}: {measured.n_sentences:,} sentences, {measured.n_tokens:,} tokens"
    title += f", {measured.n_excluded:,} excluded" if measured.n_excluded else ""
    table = FoldingTable("model", "unknown", "shared", "counted", "excluded", title=title)
    for name, figures in measured.models.items():
        values = (figures.shared, figures.counted, figures.excluded)
        numbers = ("–" if value is None else f"{value:,.2f}" for value in values)
        table.add_row(name, f"{figures.n_unknown:,}", *numbers)
    return table
