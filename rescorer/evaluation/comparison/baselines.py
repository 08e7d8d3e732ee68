"""Rows that need no language model, so that no model is credited with what a simple rule does.

Leaving out empty hypotheses, merging equal ones, or a word insertion penalty can gain as much as rescoring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.evaluation.comparison.rankings import (
    order_by_first_pass,
    order_by_weights,
    order_selection_by_first_pass,
)
from rescorer.evaluation.comparison.row import Row, build_row
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.tuned import Tuning
from rescorer.evaluation.error_rate.oracle import Selection
from rescorer.trie import Words
from rescorer.types import Weights

FIRST_PASS = "first pass"
WORD_ONLY = "word weight only"
EMPTY_OUT = "empty left out"
MERGED = "merged only"
MERGED_EMPTY_OUT = "merged, empty left out"
TUNED = "tuned"


@dataclass(frozen=True, slots=True)
class Baselines:
    """Rows without language models, the first pass first."""

    rows: list[Row]
    notes: list[str]
    """Which rows are missing because they equal an earlier one, or because they lack scores."""


def build_baselines(
    scored: Sequence[ScoredList], word_only: Weights | None = None, *, with_tuning: bool = False
) -> Baselines:
    """Build the rows that need no language model; one that chooses as an earlier one becomes a note.

    Args:
        word_only: weights of ``drop_models``; None for no row with a word weight.
        with_tuning: also tune the word weight alone, by cross-validation.
    """
    first = build_row(FIRST_PASS, "first pass", scored, map(order_by_first_pass, scored))
    can_merge = all(item.first_pass_totals is not None or not _has_equal(item.words) for item in scored)
    rows = [
        build_row(
            name,
            "baseline",
            scored,
            (order_selection_by_first_pass(item, selection) for item in scored),
        )
        for name, selection in SELECTIONS.items()
        if can_merge or not selection.merge
    ]
    if word_only is not None:
        rows += _build_word_rows(scored, word_only, with_tuning)
    kept, notes = _fold_equal([first, *rows])
    if not can_merge:
        notes.append(f"no row {MERGED!r}: it needs the scores that the recogniser ranked by (--first-pass)")
    return Baselines(kept, notes)


def _has_equal(words: Sequence[Words]) -> bool:
    """Whether some hypotheses of a list have the same words, so that merging needs their scores."""
    return len(set(words)) < len(words)


def _fold_equal(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Split rows into those that differ from all earlier ones, and notes about the others."""
    kept: list[Row] = []
    same: dict[str, list[str]] = {}
    for row in rows:
        equal = next((other for other in kept if np.array_equal(row.winners, other.winners)), None)
        if equal is None:
            kept.append(row)
        else:
            same.setdefault(equal.name, []).append(row.name)
    notes = [f"the same choices as {name!r}: {', '.join(map(repr, others))}" for name, others in same.items()]
    return kept, notes


SELECTIONS = {
    EMPTY_OUT: Selection(drop_empty=True),
    MERGED: Selection(merge=True),
    MERGED_EMPTY_OUT: Selection(merge=True, drop_empty=True),
}
"""Which hypotheses take part, by the name of the row."""


def drop_models(weights: Weights, first_pass: Weights | None = None) -> Weights | None:
    """A weights set without its language models and rerankers, to see what its word weight does alone.

    Args:
        first_pass: weights of the recogniser's score, which is then kept in place of the streams of
            ``weights``.

    Returns:
        None if no stream has a weight, so that only the lengths would decide.
    """
    streams = (first_pass or weights).streams
    if not any(streams.values()):
        return None
    return replace(weights, name=WORD_ONLY, streams=streams, lm={}, oov=0.0, rerankers={})


def _build_word_rows(scored: Sequence[ScoredList], word_only: Weights, with_tuning: bool) -> list[Row]:
    orders = (order_by_weights(item, word_only) for item in scored)
    rows = [build_row(WORD_ONLY, "baseline", scored, orders)]
    if with_tuning:
        orders = (order_by_weights(*pair) for pair in Tuning(scored, word_only, ("word",)).hold_out())
        rows.append(build_row(f"{WORD_ONLY}, {TUNED}", "baseline", scored, orders, held_out=True))
    return rows
