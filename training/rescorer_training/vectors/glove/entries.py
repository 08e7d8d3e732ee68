"""Files of shuffled entries X_ij of the matrix of co-occurrences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rescorer.errors import BundleError
from rescorer_training.progress import track

ENTRY = np.dtype([("row", "<i4"), ("column", "<i4"), ("weight", "<f4")])
"""An entry X_ij of the matrix."""
ENTRIES_PER_BLOCK = 1 << 20


def open_entries(path: Path, n_words: int, n_entries: int) -> np.ndarray:
    """Map a file of entries into memory, after checking all of them.

    Args:
        n_words: size of the vocabulary.
        n_entries: number of entries that were written to the file.

    Raises:
        BundleError: the file is missing, or has another size or an entry that cannot have been written; names
            the first one.
    """
    advice = "restore a copy of it, or start the run again in another folder"
    try:
        n_bytes = path.stat().st_size
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}; {advice}") from None
    if n_bytes != n_entries * ENTRY.itemsize or not n_entries:
        raise BundleError(
            f"{path} is damaged: it has {n_bytes:,} bytes, expected {n_entries:,} pairs of {ENTRY.itemsize} "
            f"bytes; {advice}"
        )
    entries = np.memmap(path, ENTRY, mode="r")
    with track("checking co-occurrences", "pairs", n_entries) as task:
        for begin in range(0, n_entries, ENTRIES_PER_BLOCK):
            block = entries[begin : begin + ENTRIES_PER_BLOCK]
            wrong = np.flatnonzero(~_are_valid(block, n_words))
            if len(wrong):
                row, column, weight = block[wrong[0]].tolist()
                raise BundleError(
                    f"{path} is damaged: pair {begin + wrong[0] + 1:,} is words {row} and {column} with the "
                    f"co-occurrence {weight:g}; expected words 0 to {n_words - 1:,} and a positive number; "
                    f"{advice}"
                )
            task.advance(len(block))
    return entries


def _are_valid(entries: np.ndarray, n_words: int) -> np.ndarray:
    """Say of each entry whether its words are in the vocabulary and its weight is positive and finite."""
    rows, columns, weights = entries["row"], entries["column"], entries["weight"]
    words = (np.minimum(rows, columns) >= 0) & (np.maximum(rows, columns) < n_words)
    return words & (weights > 0) & np.isfinite(weights)
