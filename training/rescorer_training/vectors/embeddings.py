"""Use word vectors in a network: as its initial embedding, or as the vectors of a vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rescorer.errors import ConfigError
from rescorer.lm.networks import SequenceModel
from rescorer.vocabulary import Vocabulary
from rescorer_training.vectors.files import read_vectors


@dataclass(frozen=True, slots=True)
class Coverage:
    """Number of words of a vocabulary that a file of vectors covers."""

    n_covered: int
    """Number of words of the vocabulary that have a vector."""
    n_words: int
    """Number of words in the vocabulary."""

    def __str__(self) -> str:
        return f"{self.n_covered:,} of {self.n_words:,} words have a vector"


def read_known_vectors(
    path: Path, vocabulary: Vocabulary, dimensions: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read the vectors of the words of a vocabulary from a file of any format; see ``read_vectors``.

    Returns:
        (K,) int64 ids, and (K, D) float32 vectors, in file order.

    Raises:
        FormatError: the file is invalid, has no vector of a word of the vocabulary, or vectors of other
            dimensions than the given ones.
    """
    vectors = read_vectors(path, keep=vocabulary.ids, dimensions=dimensions)
    return np.array([vocabulary.ids[word] for word in vectors.words]), vectors.matrix


def initialise_embedding(
    model: SequenceModel, vocabulary: Vocabulary, path: Path, frozen: bool = False
) -> Coverage:
    """Set the embeddings of words that have a vector in a file; other words keep their embeddings.

    All vectors are multiplied by the same factor, so that their root mean square equals that of the existing
    embedding and all words start with equal weight. Directions and relative lengths do not change.

    Args:
        frozen: exclude the whole embedding from training, including words without a vector.

    Raises:
        FormatError: the file is invalid, has no known word, or its vectors do not have the size of the
            embedding.
        ConfigError: ``frozen`` is set and the embedding is tied to the output layer's weights.
    """
    if frozen and model.config.tied:
        raise ConfigError(
            "a frozen embedding cannot be tied, because the output layer's word weights would be frozen too; "
            "untie them, or do not freeze the embedding"
        )
    weight = model.network.embedding.weight
    ids, vectors = read_known_vectors(path, vocabulary, weight.shape[1])
    size = math.sqrt(np.mean(np.square(vectors, dtype=np.float64)))
    with torch.no_grad():
        scale = float(weight.square().mean().sqrt()) / size if size else 1.0
        rows = torch.from_numpy(ids).to(weight.device)
        weight[rows] = torch.from_numpy(vectors * np.float32(scale)).to(weight)
    weight.requires_grad_(not frozen)
    return Coverage(len(ids), len(vocabulary))
