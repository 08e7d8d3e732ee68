"""Lay out within-class scores in tables, in which classes of similar size are padded to the same width.

With target words sorted by class, most of the work is a few operations per table instead of a few per class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

MAX_SIZE_RATIO = 1.5
FREE_PADDING = 16
"""Limits of padding: the largest class of a table has at most ``MAX_SIZE_RATIO`` times as many words as the
smallest, plus ``FREE_PADDING``."""


@dataclass(frozen=True, slots=True)
class Table:
    """The classes of one table that have rows in a batch."""

    rows: slice
    """Rows of the batch, sorted by class, that belong to this table."""
    width: int
    """Number of words in the largest class."""
    words: list[slice]
    """Word ids of each class."""
    counts: list[int]
    """Number of rows of each class."""


class TableLayout:
    """Assignment of classes to tables; a class of one word needs no scores and belongs to no table.

    Args:
        class_sizes: number of words in each class; a class is a range of word ids.

    Attributes:
        by_size: classes ordered by size, which is the layout order.
        words: word ids of each class, in layout order.
        groups: for each table, the range of positions in layout order, and the words in its largest class.
    """

    def __init__(self, class_sizes: Sequence[int]) -> None:
        self.by_size = sorted(range(len(class_sizes)), key=lambda c: class_sizes[c])
        words = [slice(first, last) for first, last in pairwise((0, *accumulate(class_sizes)))]
        self.words = [words[c] for c in self.by_size]
        self.groups: list[tuple[range, int]] = []
        sizes = [class_sizes[c] for c in self.by_size]
        begin = sizes.count(1)
        for end in range(begin + 1, len(sizes) + 1):
            if end == len(sizes) or sizes[end] > MAX_SIZE_RATIO * sizes[begin] + FREE_PADDING:
                self.groups.append((range(begin, end), sizes[end - 1]))
                begin = end

    def tables(self, counts: Sequence[int]) -> list[Table]:
        """The tables of a batch.

        Args:
            counts: number of rows of each class in the batch, in layout order.
        """
        tables = []
        begin = sum(counts[: self.groups[0][0].start]) if self.groups else 0
        for positions, width in self.groups:
            used = [position for position in positions if counts[position]]
            end = begin + sum(counts[position] for position in used)
            if used:
                words = [self.words[position] for position in used]
                tables.append(Table(slice(begin, end), width, words, [counts[position] for position in used]))
            begin = end
        return tables


def uncovered_ranges(ranges: Sequence[slice], n: int) -> Iterator[slice]:
    """Yield the parts of 0 … n-1 that the given disjoint ranges do not cover."""
    begin = 0
    for covered in sorted(ranges, key=lambda covered: covered.start):
        if begin < covered.start:
            yield slice(begin, covered.start)
        begin = covered.stop
    if begin < n:
        yield slice(begin, n)
