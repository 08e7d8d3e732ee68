"""Owns the bookkeeping of edges: which of them start in which rows, as ranges of a sorted order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor


def row_blocks(rows: Tensor, n_rows: int, size: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Cuts ``n_rows`` rows into blocks of ``size``.

    Args:
        rows: (E,) int64, the row where each edge starts.

    Yields:
        A block as a slice of the rows, the edges that start in it, and the place of each edge's row in the
        block; blocks without edges are left out.
    """
    by_row = torch.argsort(rows)
    starts = torch.arange(0, n_rows + size, size, device=rows.device)
    bounds = torch.searchsorted(rows[by_row], starts).tolist()
    for number, (first, last) in enumerate(pairwise(bounds)):
        if first < last:
            begin, edges = number * size, by_row[first:last]
            yield slice(begin, begin + size), edges, rows[edges] - begin


def runs(values: Tensor) -> Iterator[tuple[int, int, int]]:
    """(value, begin, end) of each run of equal values."""
    distinct, counts = torch.unique_consecutive(values, return_counts=True)
    end = 0
    for value, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        begin, end = end, end + count
        yield value, begin, end
