"""The commands of ``rescorer``."""

from __future__ import annotations

from typing import Annotated

import typer

from rescorer.terminal.program import EXIT_CODES, PLAIN_HELP, LazyCommand, LazyGroup, version_option

EPILOG = (
    "`rescorer help` lists the pages of the documentation. Exit codes: 0 success, 1 some lists rejected or "
    "`inspect` found something wrong, " + ", ".join(f"{code} {meaning}" for _, code, meaning in EXIT_CODES)
)


COMMANDS = {
    "rescore": LazyCommand(
        "rescorer.cli.rescore:rescore",
        "Re-rank n-best lists, or an archive of them in shards.",
    ),
    "serve": LazyCommand(
        "rescorer.cli.serve:serve",
        "Re-rank n-best lists over gRPC until SIGTERM or SIGINT.",
        "rescorer.cli.serve:SettingsCommand",
    ),
    "config": LazyCommand(
        "rescorer.cli.serve:config",
        "Show the settings that `rescorer serve` would run with, and where each of them comes from.",
        "rescorer.cli.serve:SettingsCommand",
    ),
    "health": LazyCommand(
        "rescorer.cli.serve:health",
        "Check that a server is ready, for probes: exit code 0, or 5 if this is not confirmed in time.",
    ),
    "token": LazyCommand(
        "rescorer.cli.serve:token",
        "Create a token for a client of the service; the server's clients file only gets its hash.",
    ),
    "evaluate": LazyCommand(
        "rescorer.cli.evaluate:evaluate",
        "Report the word error rate of lists, the range that re-ranking could reach, and the gain of models.",
    ),
    "compare": LazyCommand(
        "rescorer.cli.compare:compare",
        "Tell differences between the error rates of systems from chance.",
    ),
    "report": LazyCommand(
        "rescorer.cli.compare:report",
        "Write a report: one page with tables, charts and aligned utterances, which needs no network.",
    ),
    "explain": LazyCommand(
        "rescorer.cli.inspect:explain",
        "Explain why a hypothesis won: what each score and language model contributed to its lead.",
    ),
    "tune": LazyCommand(
        "rescorer.cli.tune:tune",
        "Find the weights with the fewest errors, and keep the old ones if that may be chance.",
    ),
    "calibrate": LazyCommand(
        "rescorer.cli.tune:calibrate",
        "Learn from lists with references how sure to be of the best hypothesis and of its words.",
    ),
    "candidates": LazyCommand(
        "rescorer.cli.tune:candidates",
        "Learn from lists with phrases and references when generated hypotheses may win.",
    ),
    "combine": LazyCommand(
        "rescorer.cli.compare:combine",
        "Combine the lists of several recognisers into one text per utterance, "
        "by voting word by word (ROVER).",
    ),
    "convert": LazyCommand(
        "rescorer.cli.convert:convert",
        "Convert n-best lists from one format to another.",
    ),
    "score": LazyCommand(
        "rescorer.cli.convert:score",
        "Compute the log-probability (natural log) and perplexity of text under every model of a bundle.",
    ),
    "seal": LazyCommand(
        "rescorer.cli.convert:seal_bundle",
        "List and hash files that were added to a bundle, such as weights sets and lists of phrases.",
    ),
    "inspect": LazyCommand(
        "rescorer.cli.inspect:inspect",
        "Report what lists contain and what looks wrong with them, before they are used.",
    ),
    "bench": LazyCommand(
        "rescorer.cli.measure:bench",
        "Compare each phase of scoring with the machine's matrix products, plain PyTorch and KenLM.",
    ),
    "load": LazyCommand(
        "rescorer.cli.measure:load",
        "Start a server, put it under load over loopback, and compare it with the library.",
    ),
    "shards": LazyCommand(
        "rescorer.cli.convert:shards",
        "Look at shards of `rescorer rescore --shards`, and join them.",
    ),
    "doctor": LazyCommand(
        "rescorer.cli.doctor:doctor",
        "Show versions, processors and devices, and what is missing here for which feature.",
    ),
    "help": LazyCommand(
        "rescorer.cli.help:help_command",
        "Print a page of the documentation, or list the pages.",
    ),
}

REMOVED = {
    "top": "watch a server with the Grafana board in deploy/grafana, or read http://HOST:METRICS_PORT/metrics",
}
"""Advice for each command that was removed: what to use instead. The error about the command says this."""


class Commands(LazyGroup):
    """The group of all commands of ``rescorer``."""

    lazy = COMMANDS
    removed = REMOVED


app = typer.Typer(
    **{**PLAIN_HELP, "cls": Commands},
    help="Re-rank the n-best lists of a speech recogniser with language models.\n\n"
    "Example: rescorer rescore demo/lists.jsonl.gz -o out.jsonl --bundle models/starter/1 "
    "--weights pocketsphinx",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(version: Annotated[bool, version_option("rescorer")] = False) -> None:
    """Options of the program itself."""
