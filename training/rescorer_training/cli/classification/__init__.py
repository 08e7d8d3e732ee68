"""The commands ``rescorer-train classify train``, ``evaluate`` and ``predict``."""

from __future__ import annotations

import typer

from rescorer.cli.output import PLAIN_HELP
from rescorer_training.cli.classification.evaluate import evaluate_command
from rescorer_training.cli.classification.predict import predict_command
from rescorer_training.cli.classification.train import train_command

classify_app = typer.Typer(
    **PLAIN_HELP,
    help="Classify sentences by the kind of text that they come from, with recurrent and other networks.\n\n"
    "Example: rescorer-train classify train novels=books.txt.gz telephone=calls.txt.gz -o runs/kinds",
    no_args_is_help=True,
)
classify_app.command("train")(train_command)
classify_app.command("evaluate")(evaluate_command)
classify_app.command("predict")(predict_command)
