"""Shuffle co-occurrence cells on disk in bounded memory, with both halves of the symmetric matrix."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from rescorer_training.vectors.cooccurrences.cells import CELL, read_cells
from rescorer_training.vectors.cooccurrences.matrix import mirror_cells
from rescorer_training.vectors.full_disk import FEWER_PAIRS, report_full_disk
from rescorer_training.vectors.glove.entries import ENTRY

BYTES_PER_ENTRY = 64
"""Memory that shuffling takes per entry, with its temporary arrays."""


def shuffle_entries(cells: Path, output: Path, *, n_words: int, memory_mb: int, seed: int) -> int:
    """Write the entries of a symmetric matrix in random order.

    Each entry goes to a random one of several parts, which are then shuffled in memory one after another.

    Args:
        cells: file of co-occurrence cells.

    Returns:
        Number of entries.

    Raises:
        ScoringError: the disk is full.
    """
    random = np.random.default_rng(seed)
    capacity = max(1, (memory_mb << 20) // BYTES_PER_ENTRY)
    n_parts = 1 + 4 * (cells.stat().st_size // CELL.itemsize) // capacity
    n_entries = 0
    with (
        report_full_disk(output.parent, "co-occurrences", FEWER_PAIRS),
        tempfile.TemporaryDirectory(dir=output.parent) as folder,
    ):
        parts = [Path(folder) / f"{number}.entries" for number in range(n_parts)]
        for block in read_cells(cells, max(1, capacity // 2)):
            entries = _make_entries(block, n_words)
            entries = entries[random.permutation(len(entries))]
            for part, piece in zip(parts, np.array_split(entries, n_parts), strict=True):
                with open(part, "ab") as stream:
                    stream.write(piece.view(np.uint8).data)
        partial = Path(folder) / output.name
        with open(partial, "wb") as stream:
            for part in parts:
                entries = np.fromfile(part, ENTRY)
                stream.write(entries[random.permutation(len(entries))].view(np.uint8).data)
                n_entries += len(entries)
        partial.replace(output)
    return n_entries


def _make_entries(cells: np.ndarray, n_words: int) -> np.ndarray:
    rows, columns, weights = mirror_cells(cells, n_words)
    entries = np.empty(len(rows), dtype=ENTRY)
    entries["row"], entries["column"], entries["weight"] = rows, columns, weights
    return entries
