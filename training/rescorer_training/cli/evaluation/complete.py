"""The command ``rescorer-train complete``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer_training.cli.open_models import open_models
from rescorer_training.cli.options import (
    BundleOption,
    DeviceOption,
    JsonOption,
    NeuralsOption,
    NGramsOption,
    NormaliserOption,
    ShareOption,
)
from rescorer_training.evaluation.sentence_completion import Completion, complete, read_questions


def complete_command(
    questions: Annotated[
        Path,
        typer.Argument(
            help="CSV file with the columns question, a, b, c, d, e and answer; _____ marks the blank."
        ),
    ],
    bundle: BundleOption = None,
    ngram: NGramsOption = None,
    neural: NeuralsOption = None,
    share: ShareOption = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Answer sentence-completion questions by the probability of the completed sentence.

    Each of five words is put into the blank; the answer is the word that makes the sentence, including </s>,
    most likely. Random guessing would be 20 % correct.

    Example: rescorer-train complete msr-dev.csv --bundle models/starter/1
    """
    asked = read_questions(questions)
    models = open_models(bundle, ngram, neural, normaliser=normaliser, device=device, share=share)
    completions = complete(models, asked)
    if as_json:
        facts = {
            name: asdict(completion) | {"accuracy": round(completion.accuracy, 2)}
            for name, completion in completions.items()
        }
        typer.echo(json.dumps({"shares": dict(models.shares), "models": facts}))
    else:
        print_out(make_table(completions))


def make_table(completions: dict[str, Completion]) -> FoldingTable:
    """Make a table with one row per model."""
    table = FoldingTable("model", "correct", "of", "accuracy", "candidates with unknown words")
    for name, completion in completions.items():
        table.add_row(
            name,
            f"{completion.n_correct:,}",
            f"{completion.n_questions:,}",
            f"{completion.accuracy:.1f} %",
            f"{completion.n_unknown:,}",
        )
    return table
