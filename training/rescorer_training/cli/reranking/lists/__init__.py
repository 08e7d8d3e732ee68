"""The commands ``rescorer-train lists speech`` and ``rescorer-train lists text``."""

from __future__ import annotations

import typer

from rescorer.cli.output import PLAIN_HELP
from rescorer_training.cli.reranking.lists.speech import speech_command
from rescorer_training.cli.reranking.lists.text import text_command

lists_app = typer.Typer(
    **PLAIN_HELP,
    help="Make n-best lists with references, for training where there are few real ones.",
    no_args_is_help=True,
)
lists_app.command("speech")(speech_command)
lists_app.command("text")(text_command)
