"""Words with a vector each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A vocabulary with one vector per word, the most frequent word first.

    Raises:
        ValueError: there is no word or no dimension, a word occurs twice, the matrix does not have one row
            per word, is not of type float32, or has a value that is not finite.
    """

    words: tuple[str, ...]
    matrix: np.ndarray
    """(V, D) float32."""

    def __post_init__(self) -> None:
        shape = self.matrix.shape
        if len(shape) != 2 or shape[0] != len(self.words) or not self.matrix.size:
            raise ValueError(f"expected a matrix of shape ({len(self.words)}, dimensions), got {shape}")
        if self.matrix.dtype != np.float32:
            raise ValueError(f"expected values of type float32, got {self.matrix.dtype}")
        if len(self.index) != len(self.words):
            double = next(word for row, word in enumerate(self.words) if self.index[word] != row)
            raise ValueError(f"the word {double!r} occurs twice")
        if not np.isfinite(self.matrix).all():
            bad = int(np.flatnonzero(~np.isfinite(self.matrix).all(axis=1))[0])
            raise ValueError(f"the vector of {self.words[bad]!r} has a value that is not finite")

    @cached_property
    def index(self) -> dict[str, int]:
        """Row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @property
    def dimensions(self) -> int:
        """Number of values per word."""
        return int(self.matrix.shape[1])

    def normalised(self) -> np.ndarray:
        """Return the rows with length 1, (V, D) float32; a row of zeros stays one."""
        lengths = np.linalg.norm(self.matrix.astype(np.float64), axis=1, keepdims=True)
        return (self.matrix / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)

    def most_frequent(self, n: int) -> WordVectors:
        """Return the first ``n`` words, or all if there are fewer."""
        return self if n >= len(self) else WordVectors(self.words[:n], self.matrix[:n])
