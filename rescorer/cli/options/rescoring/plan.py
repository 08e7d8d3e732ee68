"""Options for planning a run instead of running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Whether to forecast the cost, and from which sample."""

    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Write nothing, but score a sample of the lists on this machine, and print how many core "
            "hours all of them will take; with --json, as one JSON object.",
        ),
    ] = False
    plan_lists: Annotated[
        int, typer.Option(min=2, help="Number of lists that --plan scores, three times.")
    ] = 400
    plan_seed: Annotated[int, typer.Option(help="Random seed by which --plan chooses them.")] = 0
    plan_mb: Annotated[
        float,
        typer.Option(
            min=1,
            help="Largest number of megabytes that --plan reads, in places all over plain JSON lines, or in "
            "whole files. A pipe, and files of different kinds, are read to the end.",
        ),
    ] = 256.0
