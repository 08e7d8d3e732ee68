"""Owns the layout of within-class scores: words to predict sorted by class, classes of about the same size in
one padded table, so that most of the work is a few operations a table instead of a few a class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

MOST_PADDING = 1.5
"""The largest class of a table has at most so many times the words of the smallest, and a few more."""
FREE_PADDING = 16


@dataclass(frozen=True, slots=True)
class Table:
    """Some classes, and the rows of one batch that they have; classes without rows are left out."""

    rows: slice
    """Of the batch sorted by class."""
    width: int
    """Words in the largest of the classes."""
    words: list[slice]
    """Ids of each class's words."""
    counts: list[int]
    """Rows of each class."""


class TableLayout:
    """Which classes share a table; a class of one word is certain and needs none.

    Args:
        class_sizes: words in each class, a class being a range of ids.
    """

    def __init__(self, class_sizes: Sequence[int]) -> None:
        self.by_size = sorted(range(len(class_sizes)), key=lambda c: class_sizes[c])
        """Classes in the order of their rows."""
        words = [slice(first, last) for first, last in pairwise((0, *accumulate(class_sizes)))]
        self.words = [words[c] for c in self.by_size]
        """Ids of each class's words, in that order."""
        sizes = [class_sizes[c] for c in self.by_size]
        self.groups: list[tuple[range, int]] = []
        """Places in that order that share a table, and the words of the largest class among them."""
        begin = sizes.count(1)
        for end in range(begin + 1, len(sizes) + 1):
            if end == len(sizes) or sizes[end] > MOST_PADDING * sizes[begin] + FREE_PADDING:
                self.groups.append((range(begin, end), sizes[end - 1]))
                begin = end

    def tables(self, counts: Sequence[int]) -> list[Table]:
        """The tables of a batch; ``counts`` are its rows of each class, in the order of ``by_size``."""
        out = []
        begin = sum(counts[: self.groups[0][0].start]) if self.groups else 0
        for places, width in self.groups:
            there = [place for place in places if counts[place]]
            end = begin + sum(counts[place] for place in there)
            if there:
                words = [self.words[place] for place in there]
                out.append(Table(slice(begin, end), width, words, [counts[place] for place in there]))
            begin = end
        return out


def gaps(ranges: Sequence[slice], n: int) -> Iterator[slice]:
    """What disjoint ranges leave of 0 … n-1."""
    begin = 0
    for each in sorted(ranges, key=lambda each: each.start):
        if begin < each.start:
            yield slice(begin, each.start)
        begin = each.stop
    if begin < n:
        yield slice(begin, n)
