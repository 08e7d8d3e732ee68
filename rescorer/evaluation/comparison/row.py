"""One row of a comparison: a way of choosing a hypothesis of each list, and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rescorer.errors import ConfigError, did_you_mean
from rescorer.evaluation.comparison.rankings import reorder
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.error_rate.report import Report, build_report

Kind = Literal["first pass", "baseline", "model", "decision", "file", "oracle"]
"""What decides: the recogniser, a rule without language models, a language model, a decision rule on top of
one, the order of a file, or the reference."""


@dataclass(frozen=True, slots=True)
class Row:
    """A system and what it chose."""

    name: str
    kind: Kind
    winners: np.ndarray
    """(L,) int64, position in the input list of the hypothesis that the system ranks first."""
    report: Report
    held_out: bool = False
    """Whether the weights for each list were tuned without it."""
    n_generated: int = 0
    """Number of lists for which the system chose a generated hypothesis."""

    @property
    def is_baseline(self) -> bool:
        """Whether the row needs no language model, so that a model must beat it to be worth its cost."""
        return self.kind in ("first pass", "baseline")

    @property
    def is_rescored(self) -> bool:
        """Whether language models decide, here or in what wrote the file."""
        return self.kind in ("model", "decision", "file")


def build_row(
    name: str,
    kind: Kind,
    scored: Sequence[ScoredList],
    orders: Iterable[Sequence[int]],
    *,
    held_out: bool = False,
) -> Row:
    """Sum the errors of a system from the order in which it ranks the hypotheses of each list."""
    ranked = list(orders)
    lists = (reorder(item.evaluated, order) for item, order in zip(scored, ranked, strict=True))
    winners = np.array([order[0] for order in ranked], dtype=np.int64)
    chosen = (item.nbest.hypotheses[order[0]] for item, order in zip(scored, ranked, strict=True))
    n_generated = sum(hypothesis.generated is not None for hypothesis in chosen)
    return Row(name, kind, winners, build_report(lists), held_out, n_generated)


def choose_row(rows: Sequence[tuple[str, Row]], system: str | None) -> int:
    """Find the row that an analysis is about.

    Args:
        rows: rows with the names under which they are shown.
        system: name of a row, also without the name of its file; None for the last one in which language
            models rank, which is that with held-out weights if there is one, or the first row if there is
            none.

    Returns:
        The index of the row; the last one if several have the name.

    Raises:
        ConfigError: there is no such row.
    """
    if system is None:
        return max((i for i, (_, row) in enumerate(rows) if row.kind in ("model", "file")), default=0)
    found = [i for i, (name, row) in enumerate(rows) if system in (name, row.name)]
    if not found:
        names = [name for name, _ in rows]
        raise ConfigError(
            f"--system {system!r}: the rows are {', '.join(map(repr, names))}{did_you_mean(system, names)}"
        )
    return found[-1]


def count_by_list(row: Row, scored: Sequence[ScoredList]) -> tuple[np.ndarray, np.ndarray]:
    """Errors and reference words of the winners of a row, (L,) int64 each."""
    counts = [item.evaluated.hypotheses[i] for item, i in zip(scored, row.winners.tolist(), strict=True)]
    errors = np.array([count.errors for count in counts], dtype=np.int64)
    return errors, np.array([count.reference_words for count in counts], dtype=np.int64)
