"""Word vectors by singular value decomposition of PPMI co-occurrences (Levy, Goldberg & Dagan 2015).

M_ij = max(0, ln P(i, j) / (P(i) P'(j)) - ln k), where the probabilities P' of context words are smoothed,
P'(j) ∝ count_j^α, and k is the shift. With M ≈ U Σ Vᵀ, the vectors are the rows of U Σ^p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.vectors.word_vectors import WordVectors

if TYPE_CHECKING:
    from scipy.sparse import csr_array

EIGENVALUE_POWERS = (0.0, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class SvdOptions:
    """Options of the decomposition.

    Raises:
        ConfigError: a value is out of range.
    """

    dimensions: int = 100
    shift: float = 1.0
    """Number of negative samples k that the shift ln k stands for; 1 for none."""
    smoothing: float = 0.75
    """Power α of the counts of context words; 1 for none."""
    power: float = 0.5
    """Power p of the singular values."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ConfigError(f"dimensions: expected at least 1, got {self.dimensions}")
        if not 1 <= self.shift < np.inf:
            raise ConfigError(f"shift: expected a number of at least 1, got {self.shift:g}")
        if not 0 < self.smoothing <= 1:
            raise ConfigError(f"smoothing: expected a power above 0 and up to 1, got {self.smoothing:g}")
        if self.power not in EIGENVALUE_POWERS:
            raise ConfigError(f"power: expected 0, 0.5 or 1, got {self.power:g}")


def compute_ppmi(counts: csr_array, shift: float = 1.0, smoothing: float = 0.75) -> csr_array:
    """Compute shifted positive pointwise mutual information; cells of 0 are left out.

    Args:
        counts: (V, V) co-occurrences.

    Returns:
        (V, V) float64, natural logarithms.
    """
    from scipy.sparse import coo_array

    cells = counts.tocoo()
    rows, columns = cells.coords
    words = np.asarray(counts.sum(axis=1)).ravel()
    contexts = np.asarray(counts.sum(axis=0)).ravel() ** smoothing
    values = np.log(cells.data * contexts.sum()) - np.log(words[rows] * contexts[columns]) - np.log(shift)
    kept = values > 0
    return coo_array((values[kept], (rows[kept], columns[kept])), shape=counts.shape).tocsr()


def decompose(words: tuple[str, ...], counts: csr_array, options: SvdOptions) -> WordVectors:
    """Compute vectors from co-occurrences, those of the largest singular values first.

    Raises:
        ConfigError: there are not more words than dimensions, or no cell is left after the shift.
    """
    if options.dimensions >= len(words):
        raise ConfigError(
            f"dimensions: {options.dimensions} are too many for a vocabulary of {len(words):,} words; "
            f"expected at most {len(words) - 1:,}"
        )
    ppmi = compute_ppmi(counts, options.shift, options.smoothing)
    if not ppmi.nnz:
        raise ConfigError(
            "no two words occur together more often than by chance: give more text, or a lower --shift"
        )
    return WordVectors(words, compute_singular_vectors(ppmi, options.dimensions, options.power, options.seed))


def compute_singular_vectors(matrix: csr_array, n: int, power: float, seed: int) -> np.ndarray:
    """Compute U Σ^p of a matrix ≈ U Σ Vᵀ, the columns of the largest singular values first.

    The sign of a column is such that its largest value is positive.

    Args:
        matrix: (V, C).
        n: number of singular values, less than V and C.

    Returns:
        (V, n) float32.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    # U and Σ² are eigenvectors and eigenvalues of M Mᵀ. svds would also make a dense (C, n) matrix, which has
    # gigabytes where each sentence is a column.
    n_rows, columns = matrix.shape[0], matrix.T
    product = LinearOperator((n_rows, n_rows), matvec=lambda x: matrix @ (columns @ x), dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(n_rows)
    squares, left = eigsh(product, k=n, v0=start)
    order = np.argsort(-squares)
    values, left = np.sqrt(np.maximum(squares[order], 0)), left[:, order]
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])
    return np.asarray((left * signs * values**power).astype(np.float32))
