"""Options for the hypotheses that take part in a ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from rescorer.evaluation.error_rate.oracle import Selection


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
