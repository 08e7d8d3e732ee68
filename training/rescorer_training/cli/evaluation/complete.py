"""The command ``rescorer-train complete``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer_training.cli.open_models import MixtureOptions
from rescorer_training.cli.options import DeviceOption, JsonOption, NormaliserOption, SeedOption
from rescorer_training.completion.answers import Answers, answer, combine, score_vectors
from rescorer_training.completion.language_models import score_sentences
from rescorer_training.completion.questions import CandidateScores, read_questions
from rescorer_training.data.normalisation import choose_normaliser


@dataclass(frozen=True, slots=True)
class AnsweringModels(MixtureOptions):
    """Models that answer questions: language models, and word vectors."""

    vectors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PATH",
            help="Folder of a run of vectors train, or a file of word vectors, whose cosines are taken; "
            "repeat for more. The name is that of the row.",
        ),
    ] = None

    @property
    def has_language_models(self) -> bool:
        """Whether to load language models; without any models it is so too, and loading reports the lack."""
        return bool(self.bundle or self.ngram or self.neural or not self.vectors)


@expand_options
def complete_command(
    questions: Annotated[
        Path,
        typer.Argument(
            help="CSV file with the columns question, a, b, c, d, e and answer; _____ marks the blank."
        ),
    ],
    *,
    models: AnsweringModels,
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
    if models.has_language_models:
        opened = models.open(normaliser, device)
        scores, shares, chosen = score_sentences(opened, asked), opened.shares, opened.normaliser
    scores |= score_vectors(models.vectors or [], asked, chosen, taken=scores)
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
