"""Owns the entry point ``rescorer-train``: its commands, and what a fault looks like to its user."""

from __future__ import annotations

import sys

import typer

from rescorer.cli.output import PLAIN
from rescorer.errors import RescorerError
from rescorer_training.cli.bench import bench
from rescorer_training.cli.bundle import bundle
from rescorer_training.cli.complete import complete_command
from rescorer_training.cli.interpolate import interpolate_command
from rescorer_training.cli.neural import neural
from rescorer_training.cli.ngram import NGramCommand, ngram
from rescorer_training.cli.perplexity import perplexity_command
from rescorer_training.cli.prune import prune_command
from rescorer_training.cli.run import run
from rescorer_training.cli.sample import sample_command
from rescorer_training.cli.weights import average_command, quantise_command

app = typer.Typer(
    **PLAIN,
    help="Make the language models that rescorer serves.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("ngram", cls=NGramCommand)(ngram)
app.command("neural")(neural)
app.command("run")(run)
app.command("bench")(bench)
app.command("bundle")(bundle)
app.command("perplexity")(perplexity_command)
app.command("interpolate")(interpolate_command)
app.command("prune")(prune_command)
app.command("sample")(sample_command)
app.command("quantise")(quantise_command)
app.command("average")(average_command)
app.command("complete")(complete_command)

FAULT = 2
"""Exit code for bad input or options, the same as the option parser's."""


def main() -> None:
    """Runs a command; a fault of ours is one line on stderr, not a traceback."""
    try:
        app()
    except RescorerError as fault:
        print(f"rescorer-train: {fault}", file=sys.stderr)
        sys.exit(FAULT)
