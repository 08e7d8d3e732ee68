"""The command ``rescorer-train classify predict``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rescorer.formats.io import text_io
from rescorer_training.cli.classification.texts import find_model
from rescorer_training.cli.options import JsonOption
from rescorer_training.data.normalisation import choose_normaliser


def predict_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run of classify train.")],
    text: Annotated[
        str, typer.Argument(help="Text with one sentence per line, gzip or plain; - reads standard input.")
    ] = "-",
    as_json: JsonOption = False,
) -> None:
    """Write the class of each sentence, and the probability of every class, one line per line of text.

    Columns are separated by tabs; the first line names them. With --json, every line is an object, which also
    counts the words and those unknown to the classifier. Lines without words have predictions too.

    Example: echo "call me ishmael" | rescorer-train classify predict runs/kinds
    """
    from rescorer_training.classification.model import load_classifier
    from rescorer_training.classification.predict import predict_lines

    folder = find_model(run)
    model, vocabulary = load_classifier(folder)
    lines = (line for _, line in text_io.read_lines_strict(text))
    if not as_json:
        typer.echo("\t".join(["class", *model.config.labels]))
    for prediction in predict_lines(model, vocabulary, choose_normaliser(None, [folder]), lines):
        if as_json:
            facts = {
                "class": prediction.label,
                "probabilities": prediction.probabilities,
                "words": prediction.n_words,
                "unknown_words": prediction.n_unknown,
            }
            typer.echo(json.dumps(facts))
        else:
            values = (f"{value:.6f}" for value in prediction.probabilities.values())
            typer.echo("\t".join([prediction.label, *values]))
