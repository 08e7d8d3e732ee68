"""The command ``rescorer-train classify train``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import TEXT
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.errors import ConfigError
from rescorer_training.classification.config import ClassifierOptions, ClassifierTraining
from rescorer_training.cli.classification.texts import parse_texts
from rescorer_training.cli.options import JsonOption, NormaliserOption
from rescorer_training.cli.outputs import check_run_output
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.neural.options import RunOptions


@dataclass(frozen=True, slots=True)
class LabelledTextOptions:
    """How texts are prepared: what is held out, which words are known, and the normaliser."""

    validation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Held-out text of a class for early stopping; repeat for each class. Default: the last "
            "sentences of each text, which are then not trained on.",
        ),
    ] = None
    validation_share: Annotated[
        float, typer.Option(help="Share of each text that is held out if there is no --validation.")
    ] = 0.1
    vocabulary_size: Annotated[
        int,
        typer.Option(
            help="Number of words to know, the most frequent ones; words that occur only once are unknown."
        ),
    ] = 50_000
    normaliser: NormaliserOption = None


@expand_options
def train_command(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=FILE...", help="Text of each class, one sentence per line; gzip or plain."
        ),
    ],
    output_folder: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the run: model, log and state.")
    ],
    *,
    preparation: LabelledTextOptions,
    run: RunOptions,
    as_json: JsonOption = False,
    network: ClassifierOptions,
    options: ClassifierTraining,
) -> None:
    """Train a classifier of sentences from one text per class.

    Example: rescorer-train classify train novels=books.txt.gz telephone=calls.txt.gz -o runs/kinds
    """
    # deferred, because importing torch takes seconds
    from rescorer_training.classification import prepare, train

    by_class = parse_texts(texts)
    if len(by_class) < 2:
        raise ConfigError("there is one class; expected two or more texts, each as NAME=FILE")
    validation = parse_texts(preparation.validation or [])
    chosen = choose_normaliser(preparation.normaliser, [output_folder] if run.resume else [])
    inputs = train.RunInputs(output_folder, by_class, validation, chosen)
    if run.resume:
        text = prepare.load_prepared(output_folder)
    else:
        files = (TEXT, prepare.VOCABULARY_FILE, prepare.TEXT_FILE, prepare.SPLIT_FILE)
        check_run_output("-o", output_folder, files)
        train.start_folder(inputs)
        text = prepare.prepare_text(
            output_folder, by_class, validation, inputs.normaliser,
            vocabulary_size=preparation.vocabulary_size, validation_share=preparation.validation_share,
        )  # fmt: skip
    facts = train.train(inputs, text, network, options, run)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        typer.echo(
            f"validation accuracy {100 * facts['validation_accuracy']:.2f} %, naive Bayes "
            f"{100 * facts['naive_bayes_validation_accuracy']:.2f} % ({facts['validation_sentences']:,} "
            f"sentences: {facts['validation']})"
        )
