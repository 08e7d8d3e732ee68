"""Owns the entry point ``rescorer-train``: its commands, and what a fault looks like to its user."""

from __future__ import annotations

import sys

import typer

from rescorer.cli.output import PLAIN
from rescorer.errors import RescorerError
from training.cli_bench import bench
from training.cli_bundle import bundle
from training.cli_complete import complete_command
from training.cli_interpolate import interpolate_command
from training.cli_neural import neural
from training.cli_ngram import NGramCommand, ngram
from training.cli_perplexity import perplexity_command
from training.cli_prune import prune_command
from training.cli_recipe import run
from training.cli_sample import sample_command
from training.cli_weights import average_command, quantise_command

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
