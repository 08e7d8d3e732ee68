"""Options for the hypotheses that take part in a ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from rescorer.evaluation.error_rate.oracle import Selection
from rescorer.types import Weights


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """Which hypotheses of a list take part in its ranking."""

    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Merge hypotheses with the same words after normalisation, adding their probabilities.",
        ),
    ] = False
    drop_empty: Annotated[
        bool,
        typer.Option(
            "--drop-empty",
            help="Drop hypotheses without words after normalisation; if all are empty, the first stays.",
        ),
    ] = False

    def selection(self) -> Selection:
        """The same choice, as the evaluation expects it."""
        return Selection(self.merge, self.drop_empty)


def warn_if_tuned_otherwise(weights: Weights, selection: Selection) -> None:
    """Print a line to stderr if the weights were tuned with another choice of hypotheses."""
    for name, option, is_set in (
        ("merge", "--merge", selection.merge),
        ("drop_empty", "--drop-empty", selection.drop_empty),
    ):
        was_set = weights.tuned_with.get(name, is_set)
        if was_set != is_set:
            tuned, now = ("with", "without") if was_set else ("without", "with")
            message = f"were tuned {tuned} {option} and are used {now} it"
            typer.echo(f"warning: weights {weights.name!r} {message}", err=True)
