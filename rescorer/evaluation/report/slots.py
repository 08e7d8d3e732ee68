"""Merge the alignments of several readings into columns: reference words, and gaps with insertions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rescorer.evaluation.report.data import AlignedWord, Reading, WordKind

Cell = tuple[WordKind, str]
"""Kind of the word, and the word as recognised; empty for a deletion."""
NOTHING: Cell = ("correct", "")


class Slot(NamedTuple):
    """One column: a reference word, or a gap in which some reading has insertions."""

    reference: str
    """Empty for a gap."""
    cells: tuple[Cell, ...]
    """One per reading."""


def make_slots(readings: Sequence[Reading]) -> list[Slot]:
    """Columns of readings that are aligned with the same reference words.

    Readings of a reference with alternatives may differ in their reference words; those with another number
    of reference words than the first are aligned position by position as far as they go.
    """
    columns = [_split(reading.words) for reading in readings]
    n_words = max((len(words) for words, _ in columns), default=0)
    slots: list[Slot] = []
    for position in range(n_words + 1):
        gaps = [insertions.get(position, ()) for _, insertions in columns]
        if any(gaps):
            slots.append(Slot("", tuple(("insertion", " ".join(gap)) if gap else NOTHING for gap in gaps)))
        if position < n_words:
            words = [words[position] if position < len(words) else None for words, _ in columns]
            reference = next(word.reference for word in words if word is not None)
            slots.append(
                Slot(reference, tuple((word.kind, word.hypothesis) if word else NOTHING for word in words))
            )
    return slots


def _split(aligned: Sequence[AlignedWord]) -> tuple[list[AlignedWord], dict[int, tuple[str, ...]]]:
    """The reference words in order, and the insertions before each of them by position."""
    words: list[AlignedWord] = []
    insertions: dict[int, tuple[str, ...]] = {}
    for word in aligned:
        if word.kind == "insertion":
            insertions[len(words)] = (*insertions.get(len(words), ()), word.hypothesis)
        else:
            words.append(word)
    return words, insertions
