"""The command ``rescorer-train complete``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
    SeedOption,
    ShareOption,
)
from rescorer_training.completion.answers import Answers, answer, combine, score_vectors
from rescorer_training.completion.language_models import score_sentences
from rescorer_training.completion.questions import CandidateScores, read_questions
from rescorer_training.data.normalisation import choose_normaliser


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
    vectors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PATH",
            help="Folder of a run of vectors train, or a file of word vectors, whose cosines are taken; "
            "repeat for more. The name is that of the row.",
        ),
    ] = None,
    learn: Annotated[
        bool,
        typer.Option(
            "--combine", help="Learn to combine all models, by nested cross-validation on the questions."
        ),
    ] = False,
    normaliser: NormaliserOption = None,
    seed: SeedOption = 1,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Answer sentence-completion questions by language models, word vectors, and their combination.

    Each of five words is put into the blank; the answer is the word that makes the sentence, including </s>,
    most likely, or that goes best with the words around it. Random guessing would be 20 % correct. Intervals
    are of 95 %, and p-values of McNemar's exact test, two-sided, against the combination. Its weights are
    learned in ten folds, always without the questions that they answer.

    Example: rescorer-train complete msr-dev.csv --bundle models/starter/1
    """
    asked = read_questions(questions)
    scores: dict[str, CandidateScores] = {}
    shares: Mapping[str, float] = {}
    chosen = choose_normaliser(normaliser)
    if bundle or ngram or neural or not vectors:
        models = open_models(bundle, ngram, neural, normaliser=normaliser, device=device, share=share)
        scores, shares, chosen = score_sentences(models, asked), models.shares, models.normaliser
    scores |= score_vectors(vectors or [], asked, chosen, taken=scores)
    combination = combine(scores, asked, seed) if learn else None
    answers = answer(scores, asked, combination)
    if as_json:
        facts = {name: _describe(row) for name, row in answers.items()}
        weights = dict(zip(combination.names, combination.mean_weights, strict=True)) if combination else None
        typer.echo(json.dumps({"shares": dict(shares), "models": facts, "weights": weights}))
    else:
        print_out(make_table(answers))


def _describe(row: Answers) -> dict[str, Any]:
    facts = asdict(row) | {"accuracy": round(row.accuracy, 2), "interval": row.interval}
    return facts if row.test else {name: value for name, value in facts.items() if name != "test"}


def make_table(answers: Mapping[str, Answers]) -> FoldingTable:
    """Make a table with one row per model."""
    compared = any(row.test for row in answers.values())
    paired = ("only it is right", "only the combination is right", "p") if compared else ()
    table = FoldingTable(
        "model", "correct", "of", "accuracy", "interval", "candidates with unknown words", *paired
    )
    for name, row in answers.items():
        low, high = row.interval
        tested = (
            (f"{row.test.only_first:,}", f"{row.test.only_second:,}", f"{row.test.p_value:.2g}")
            if (row.test)
            else ("",) * len(paired)
        )
        table.add_row(
            name, f"{row.n_correct:,}", f"{row.n_questions:,}", f"{row.accuracy:.1f} %",
            f"{low:.1f} … {high:.1f}", f"{row.n_unknown:,}", *tested,
        )  # fmt: skip
    return table
