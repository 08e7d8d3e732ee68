"""Owns the command ``rescorer-train complete``."""

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
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.sentence_completion import Completion, complete, read_questions


def complete_command(
    questions: Annotated[
        Path, typer.Argument(help="CSV with the columns question, a, b, c, d, e, answer; the blank is _____.")
    ],
    bundle: BundleOption = None,
    ngram: NGramsOption = None,
    neural: NeuralsOption = None,
    share: ShareOption = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Answer sentence-completion questions by the probability of the whole sentence.

    Each of five words is put into the blank; the likeliest sentence, </s> counted, is the answer. Chance is
    20 %.

    Example: rescorer-train complete msr-dev.csv --bundle models/starter/1
    """
    asked = read_questions(questions)
    normalise = read_normaliser(normaliser) if normaliser else None
    models = load_models(
        bundle, ngram or (), neural or (), normaliser=normalise, shares=read_shares(share), device=device
    )
    answers = complete(models, asked)
    if as_json:
        facts = {name: asdict(each) | {"accuracy": round(each.accuracy, 2)} for name, each in answers.items()}
        typer.echo(json.dumps({"shares": dict(models.shares), "models": facts}))
    else:
        Console().print(table(answers))


def table(answers: dict[str, Completion]) -> Table:
    """A row a model."""
    out = Table()
    for column in ("model", "correct", "of", "accuracy", "candidates with unknown words"):
        out.add_column(column, justify="left" if column == "model" else "right")
    for name, each in answers.items():
        numbers = (
            f"{each.n_correct:,}",
            f"{each.n_questions:,}",
            f"{each.accuracy:.1f} %",
            f"{each.n_unknown:,}",
        )
        out.add_row(name, *numbers)
    return out
