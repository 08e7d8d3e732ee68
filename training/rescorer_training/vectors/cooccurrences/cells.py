"""Files of co-occurrence cells, sorted by key, and the merge of several of them in bounded memory.

The matrix X of co-occurrences is symmetric. A file has one cell per pair of words i ≤ j, with key i·V + j.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

CELL = np.dtype([("key", "<i8"), ("weight", "<f8")])
"""A cell: key i·V + j of two words i ≤ j, and their total weight."""

COPIES_IN_MERGE = 5
"""Memory that merging takes, with its temporary arrays, in multiples of the blocks that it reads."""


def sum_cells(keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Add up the weights of equal keys.

    Args:
        keys: (n,) int64 in ascending order.
        weights: (n,) float64.

    Returns:
        Cells with distinct keys in ascending order.
    """
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    cells = np.empty(len(starts), dtype=CELL)
    cells["key"] = keys[starts]
    cells["weight"] = np.add.reduceat(weights, starts) if len(starts) else 0
    return cells


def write_cells(path: Path, cells: np.ndarray) -> None:
    """Write cells to a file; on a full disk the error has its reason, which that of ``tofile`` lacks."""
    with open(path, "wb") as stream:
        stream.write(cells.view(np.uint8).data)


def read_cells(path: Path, cells_per_block: int) -> Iterator[np.ndarray]:
    """Yield the cells of a file in blocks."""
    n_cells = path.stat().st_size // CELL.itemsize
    for first in range(0, n_cells, cells_per_block):
        yield np.fromfile(path, CELL, min(cells_per_block, n_cells - first), offset=first * CELL.itemsize)


def merge_runs(runs: Sequence[Path], memory_bytes: int) -> Iterator[np.ndarray]:
    """Merge sorted files of cells, adding up equal keys; yield cells in ascending order of distinct keys.

    Each run is read in blocks. Of the blocks in memory, the cells up to the smallest last key are complete:
    no block that is still on disk has such a key.
    """
    cells_per_block = max(1, memory_bytes // (COPIES_IN_MERGE * CELL.itemsize * max(1, len(runs))))
    streams = [read_cells(run, cells_per_block) for run in runs]
    blocks = [next(stream, None) for stream in streams]
    while any(block is not None for block in blocks):
        limit = min(block["key"][-1] for block in blocks if block is not None)
        complete = []
        for number, block in enumerate(blocks):
            if block is None:
                continue
            end = np.searchsorted(block["key"], limit, side="right")
            complete.append(block[:end])
            blocks[number] = block[end:] if end < len(block) else next(streams[number], None)
        cells = np.concatenate(complete)
        cells = cells[np.argsort(cells["key"], kind="stable")]
        yield sum_cells(cells["key"], cells["weight"])
