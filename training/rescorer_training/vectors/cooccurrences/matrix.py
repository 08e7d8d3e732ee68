"""Turn cells of word pairs i ≤ j into both halves of the symmetric matrix of co-occurrences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rescorer_training.vectors.cooccurrences.cells import read_cells

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CELLS_PER_BLOCK = 4_000_000


def mirror_cells(cells: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, columns (int32) and weights (float64) of X_ij and X_ji.

    A pair of equal words counts two, because each of them is in the other's window.
    """
    low, high = np.divmod(cells["key"], n_words)
    differ = low != high
    rows = np.concatenate([low, high[differ]]).astype(np.int32)
    columns = np.concatenate([high, low[differ]]).astype(np.int32)
    weights = np.concatenate([np.where(differ, 1.0, 2.0) * cells["weight"], cells["weight"][differ]])
    return rows, columns, weights


def load_matrix(path: Path, n_words: int) -> csr_array:
    """Load the cells of a file as a sparse matrix X, (V, V) float64."""
    from scipy.sparse import coo_array

    blocks = [mirror_cells(cells, n_words) for cells in read_cells(path, CELLS_PER_BLOCK)]
    rows, columns, weights = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return coo_array((weights, (rows, columns)), shape=(n_words, n_words)).tocsr()
