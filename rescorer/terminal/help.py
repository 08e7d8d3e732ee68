"""Help in groups: the options of a command under headings, those that most people need first.

A command's class has a table of groups. Options that are in no group of the table come first, under
``Options``. The order of the table is that of the help, so that an option is found at the same place in the
help of every command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from typer.core import TyperCommand

GENERAL = "Options"
"""Heading of the options that are in no group, and of those that most people need."""
HELP = "help"
"""Name of the option that shows the help, which is the last of the first group."""
MIN_GROUPED = 10
"""A command with fewer options shows them all under one heading, in the order of the groups."""

Groups = Mapping[str, Iterable[str]]
"""The names of options, such as ``--output``, by the heading of their group."""

GROUPS: dict[str, tuple[str, ...]] = {
    GENERAL: (
        "--bundle", "--reference", "--weights", "--weight", "--tune", "--validation", "--text", "--lm",
        "--output", "--to", "--force",
    ),
    "Input": (
        "--format", "--map", "--stream", "--groups", "--session", "--session-text", "--join-pieces",
        "--normaliser", "--language", "--fillers", "--letters",
    ),
    "Models and weights": (
        "--first-pass", "--system-weights", "--phrases", "--phrase-list", "--ngram", "--neural", "--units",
        "--share", "--lm-cache",
    ),
    "Deciding": (
        "--merge", "--drop-empty", "--decision", "--decision-unit", "--temperature", "--temperatures",
        "--null-weight", "--generate", "--dictionary", "--max-false-alarms", "--distractors", "--decoys",
    ),
    "Counting errors": (
        "--unit", "--counting", "--characters", "--optional-words", "--fragments", "--alternations", "--by",
        "--tests", "--by-group", "--system", "--sweep",
    ),
    "Shards": (
        "--shards", "--shard-lists", "--shard", "--resume", "--plan-only", "--engine", "--address",
        "--gpus-per-worker", "--wait-s",
    ),
    "Forecast": ("--plan", "--plan-lists", "--plan-seed", "--plan-mb"),
    "Output": (
        "--columns", "--signature", "--rejects", "--errors",
        "--alignments", "--own-lists", "--top", "--title", "--max-utterances",
        "--plot", "--export", "--raw", "--normalised", "--quiet", "--json",
    ),
    "Resources": (
        "--device", "--dtype", "--batch-words", "--workers", "--processes", "--threads", "--cache",
        "--no-cache",
    ),
}  # fmt: skip
"""The groups of the options that commands of ``rescorer`` have, and those that ``rescorer-train`` shares."""


class GroupedCommand(TyperCommand):
    """A command whose help shows its options in groups."""

    groups: ClassVar[Groups] = GROUPS

    def grouped_options(self, ctx: Any) -> dict[str, list[Any]]:
        """Return the options that the help shows, by the heading of their group, in the order of the help."""
        params: list[Any] = list(self.get_params(ctx))
        shown = [option for option in params if option.param_type_name == "option" and not option.hidden]
        names = {name: option for option in shown for name in option.opts}
        found = {
            title: [names[name] for name in group if name in names] for title, group in self.groups.items()
        }
        placed = {option.name for options in found.values() for option in options}
        first = found.pop(GENERAL, [])
        general = first + [option for option in shown if option.name not in {*placed, HELP}]
        if len(shown) < MIN_GROUPED:
            general += [option for group in found.values() for option in group]
            found.clear()
        general += [option for option in shown if option.name == HELP]
        return {title: options for title, options in {GENERAL: general, **found}.items() if options}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and then each group of options."""
        arguments = [item for item in self.get_params(ctx) if item.param_type_name == "argument"]
        for title, parameters in {"Arguments": arguments, **self.grouped_options(ctx)}.items():
            records = [record for item in parameters if (record := item.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
