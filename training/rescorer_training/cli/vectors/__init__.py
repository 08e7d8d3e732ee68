"""The commands ``rescorer-train vectors …``.

Text, networks or files of word vectors come in; files of vectors, tables and pictures come out.
"""

from __future__ import annotations

import typer

from rescorer.cli.output import PLAIN_HELP
from rescorer_training.cli.vectors.analogy import analogy_command
from rescorer_training.cli.vectors.convert import convert_command
from rescorer_training.cli.vectors.export import export_command
from rescorer_training.cli.vectors.glove import glove_command
from rescorer_training.cli.vectors.lsa import lsa_command
from rescorer_training.cli.vectors.neighbours import neighbours_command
from rescorer_training.cli.vectors.plot import plot_command
from rescorer_training.cli.vectors.similarity import similarity_command
from rescorer_training.cli.vectors.svd import svd_command
from rescorer_training.cli.vectors.train import train_command

vectors_app = typer.Typer(
    **PLAIN_HELP,
    help="Train, measure and look at word vectors.\n\n"
    "Example: rescorer-train vectors train text.txt.gz -o vectors.txt --run runs/vectors",
    no_args_is_help=True,
)
vectors_app.command("glove")(glove_command)
vectors_app.command("svd")(svd_command)
vectors_app.command("lsa")(lsa_command)
vectors_app.command("export")(export_command)
vectors_app.command("train")(train_command)
vectors_app.command("convert")(convert_command)
vectors_app.command("neighbours")(neighbours_command)
vectors_app.command("analogy")(analogy_command)
vectors_app.command("plot")(plot_command)
vectors_app.command("similarity")(similarity_command)
