"""Encode the words of a hypothesis as the mean of a language model's context vectors, times a projection.

A context vector is what the network of the model predicts a word from. The mean is over the vectors from
which the words of the hypothesis and its end of sentence are predicted. Because the mean is linear, the
vectors are projected where the networks run, and K numbers per hypothesis leave that process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError, quote

MAX_ENCODING_SIZE = 32
"""Largest K of a reranker."""
MAX_VECTOR_SIZE = 16_384
"""Longest context vector, as in the configuration of networks."""
ENCODING = "encoding:"
"""What the name of an encoding begins with in explanations; that of the language model follows."""


@dataclass(frozen=True, slots=True)
class WordEncoder:
    """A language model of the bundle, and the projection of its context vectors.

    Raises:
        ConfigError: the projection has another shape, or a value that is not finite.
    """

    model: str
    """Name of the model, which must be a network."""
    projection: np.ndarray
    """(D, K) float64, from context vectors of length D."""

    def __post_init__(self) -> None:
        shape = self.projection.shape
        if len(shape) != 2 or not 0 < shape[0] <= MAX_VECTOR_SIZE or not shape[1]:
            raise ConfigError(
                f"the projection of the context vectors of {quote(self.model)} has the shape {shape}; "
                f"expected 1 to {MAX_VECTOR_SIZE:,} rows, and columns"
            )
        if not np.isfinite(self.projection).all():
            raise ConfigError(
                f"the projection of the context vectors of {quote(self.model)} has a value that is not finite"
            )
