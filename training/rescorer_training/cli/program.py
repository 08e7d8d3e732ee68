"""The commands of ``rescorer-train``, and how they run and end."""

from __future__ import annotations

from typing import Annotated

import typer

from rescorer.cli.output import PLAIN_HELP, version_option
from rescorer.cli.program import run as run_program
from rescorer_training.cli.bench import bench
from rescorer_training.cli.bundles.adapt import adapt
from rescorer_training.cli.bundles.bundle import bundle
from rescorer_training.cli.bundles.tables import tables
from rescorer_training.cli.classification import classify_app
from rescorer_training.cli.evaluation.complete import complete_command
from rescorer_training.cli.evaluation.perplexity import perplexity_command
from rescorer_training.cli.evaluation.sample import sample_command
from rescorer_training.cli.models.interpolate import interpolate_command
from rescorer_training.cli.models.neural import neural
from rescorer_training.cli.models.ngram import NGramCommand, ngram
from rescorer_training.cli.models.postprocess import average_command, quantise_command
from rescorer_training.cli.models.prune import prune_command
from rescorer_training.cli.progress import show_bar
from rescorer_training.cli.reranking.lists import lists_app
from rescorer_training.cli.reranking.reranker import reranker_command
from rescorer_training.cli.run import run
from rescorer_training.cli.vectors import vectors_app
from rescorer_training.progress import install_display

app = typer.Typer(
    **PLAIN_HELP,
    help="Train, measure and publish the language models that rescorer serves.\n\n"
    "Example: rescorer-train run ptb --data ~/text -o ptb",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(version: Annotated[bool, version_option("rescorer-train")] = False) -> None:
    """Options of the program itself."""


app.command("ngram", cls=NGramCommand)(ngram)
app.command("neural")(neural)
app.command("run")(run)
app.command("bench")(bench)
app.command("bundle")(bundle)
app.command("adapt")(adapt)
app.command("tables")(tables)
app.command("perplexity")(perplexity_command)
app.command("interpolate")(interpolate_command)
app.command("prune")(prune_command)
app.command("sample")(sample_command)
app.command("quantise")(quantise_command)
app.command("average")(average_command)
app.command("complete")(complete_command)
app.add_typer(lists_app, name="lists")
app.add_typer(classify_app, name="classify")
app.command("reranker")(reranker_command)
app.add_typer(vectors_app, name="vectors")

ERROR_STATUS = 2
"""Exit status for invalid input or options, the same as the option parser's."""


def run_commands() -> None:
    """Run a command; print errors of this project as one line on stderr instead of a traceback."""
    install_display(show_bar)
    run_program(app, "rescorer-train", lambda _: ERROR_STATUS)
