"""The command ``rescorer-train vectors analogy``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer_training.cli.options import JsonOption
from rescorer_training.cli.vectors.options import VectorReadingOptions, VectorsArgument
from rescorer_training.vectors.evaluation.analogy import Answers, Method, answer_analogies, summarise
from rescorer_training.vectors.evaluation.questions import read_analogies


@expand_options
def analogy_command(
    vectors: VectorsArgument,
    questions: Annotated[
        Path,
        typer.Argument(
            metavar="QUESTIONS",
            help="Questions in the format of Google's: ': category', then four words per line.",
        ),
    ],
    *,
    reading: VectorReadingOptions,
    as_json: JsonOption = False,
) -> None:
    """Answer analogies, "Athens is to Greece as Oslo is to …", by category, with 3CosAdd and 3CosMul.

    The answer is the nearest word other than the three. Words are compared in lower case. A question with a
    word that has no vector is left out: "covered" is the share that is not. Categories whose name begins with
    "gram" are syntactic, the others semantic. After ± is half of the 95 % interval that a bootstrap over the
    questions gives.

    Example: rescorer-train vectors analogy vectors.bin questions-words.txt
    """
    categories = read_analogies(questions)
    answers = answer_analogies(reading.read(vectors), categories)
    sums = summarise(categories, answers)
    if as_json:
        facts = {
            "categories": [describe(item) for item in answers],
            "sums": [describe(item) for item in sums],
        }
        typer.echo(json.dumps(facts))
        return
    table = FoldingTable("category", "questions", "covered %", *(f"{method} %" for method in Method))
    for item in (*answers, *sums):
        covered = f"{100 * item.n_covered / item.n_questions:.1f}"
        cells = (format_accuracy(item, method) for method in Method)
        table.add_row(item.name, f"{item.n_questions:,}", covered, *cells)
    print_out(table)


def describe(item: Answers) -> dict[str, Any]:
    """Facts about one category, for JSON."""
    return {
        "name": item.name,
        "questions": item.n_questions,
        "covered": item.n_covered,
        **{
            method.value: {
                "right": item.n_right[method],
                "accuracy": item.accuracy(method),
                "interval": item.interval(method),
            }
            for method in Method
        },
    }


def format_accuracy(item: Answers, method: Method) -> str:
    """Accuracy in percent, with half of its interval where there is one."""
    accuracy, interval = item.accuracy(method), item.interval(method)
    if accuracy is None or interval is None:
        return "–"
    half = (interval[1] - interval[0]) / 2
    return f"{100 * accuracy:.1f}" + (f" ±{100 * half:4.1f}" if half else " " * 6)
