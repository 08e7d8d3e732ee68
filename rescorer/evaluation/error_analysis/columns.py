"""Put two recognised texts under their reference, word under word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from rescorer.evaluation.error_analysis.aligned_text import Alignment, reference_tokens


class Column(NamedTuple):
    """A reference word and what two systems recognised there."""

    reference: str | None
    """None beside an insertion."""
    before: str | None
    """None for a deletion, or beside an insertion of the other system only."""
    after: str | None


def align_three(before: Alignment, after: Alignment) -> list[Column]:
    """Merge two alignments with the same reference into columns.

    Insertions at the same place share columns.

    Raises:
        ValueError: the alignments follow different readings of the reference.
    """
    if reference_tokens(before) != reference_tokens(after):
        raise ValueError("the alignments follow different readings of the reference")
    columns: list[Column] = []
    for (inserted_before, pair_before), (inserted_after, pair_after) in zip(
        _split_insertions(before), _split_insertions(after), strict=True
    ):
        columns += (Column(None, *words) for words in zip_longest(inserted_before, inserted_after))
        if pair_before is not None and pair_after is not None:
            columns.append(Column(pair_before[0], pair_before[1], pair_after[1]))
    return columns


_Place = tuple[list[str | None], tuple[str, str | None] | None]


def _split_insertions(alignment: Sequence[tuple[str | None, str | None]]) -> list[_Place]:
    """Each reference word with what it became, and the words inserted before it; then those at the end."""
    places: list[_Place] = []
    inserted: list[str | None] = []
    for reference, hypothesis in alignment:
        if reference is None:
            inserted.append(hypothesis)
        else:
            places.append((inserted, (reference, hypothesis)))
            inserted = []
    return [*places, (inserted, None)]
