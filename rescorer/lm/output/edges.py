"""Group edges by the rows of context vectors from which they are predicted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor


def row_blocks(rows: Tensor, n_rows: int, size: int) -> Iterator[tuple[slice, Tensor | slice, Tensor]]:
    """Split ``n_rows`` rows into blocks of ``size`` and find the edges of each block.

    Args:
        rows: (E,) int64, the row of each edge.

    Yields:
        A block as a slice of the rows, an index of its edges, and the position of each edge's row within the
        block. If there are several, blocks without edges are skipped.
    """
    if n_rows <= size:
        yield slice(0, n_rows), slice(None), rows
        return
    by_row = torch.argsort(rows)
    starts = torch.arange(0, n_rows + size, size, device=rows.device)
    bounds = torch.searchsorted(rows[by_row], starts).tolist()
    for number, (first, last) in enumerate(pairwise(bounds)):
        if first < last:
            begin, edges = number * size, by_row[first:last]
            yield slice(begin, begin + size), edges, rows[edges] - begin


def equal_runs(values: Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield (value, begin, end) of each run of equal values."""
    distinct, counts = torch.unique_consecutive(values, return_counts=True)
    end = 0
    for value, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        begin, end = end, end + count
        yield value, begin, end
