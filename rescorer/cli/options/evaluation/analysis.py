"""Options for looking at the errors behind an error rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """What to print besides the rows: about the errors of one system, about groups, and more rows."""

    errors: Annotated[
        bool,
        typer.Option(
            "--errors",
            help="Add the commonest confusions, the words that rescoring fixed and broke, and error rates by "
            "word frequency, unknown words, length, and rank of the chosen hypothesis.",
        ),
    ] = False
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments",
            help="Print the lists with errors: reference, first pass and rescored text, word under word.",
        ),
    ] = False
    system: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="Row that --errors and --alignments are about; default: the last one whose models rank, "
            "with --tune the one with held-out weights.",
        ),
    ] = None
    by_group: Annotated[
        bool, typer.Option("--by-group", help="Add a table with one row per speaker or other group.")
    ] = False
    own_lists: Annotated[
        bool, typer.Option("--own-lists", help="With several files: add rows for all lists of each.")
    ] = False
