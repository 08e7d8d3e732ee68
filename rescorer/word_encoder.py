"""Encodings of the words of hypotheses, as inputs of rerankers.

An encoding is the mean of the context vectors from which a language model predicts the words of a hypothesis
and its end of sentence, times a projection. Because the mean is linear, the vectors are projected where the
networks run, and K numbers per hypothesis leave that process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError, quote

MAX_ENCODING_SIZE = 32  # largest K of a reranker
MAX_VECTOR_SIZE = 16_384  # longest context vector, as in the configuration of networks
ENCODING = "encoding:"
"""Prefix of the name of an encoding in explanations; that of the language model follows."""


@dataclass(frozen=True, slots=True)
class WordEncoder:
    """A language model of the bundle, and the projection of its context vectors.

    Raises:
        ConfigError: the projection has another shape, or a value that is not finite.
    """

    model: str  # name of the model, which must be a network
    projection: np.ndarray  # (D, K) float64, from context vectors of length D

    def __post_init__(self) -> None:
        shape, place = self.projection.shape, f"the projection of the context vectors of {quote(self.model)}"
        if len(shape) != 2 or not 0 < shape[0] <= MAX_VECTOR_SIZE or not shape[1]:
            raise ConfigError(
                f"{place} has the shape {shape}; expected 1 to {MAX_VECTOR_SIZE:,} rows, and columns"
            )
        if not np.isfinite(self.projection).all():
            raise ConfigError(f"{place} has a value that is not finite")
