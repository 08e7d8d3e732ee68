"""Word vectors by latent semantic analysis (Deerwester et al. 1990): words that occur in the same documents.

A document is a few consecutive sentences. An entry of the matrix of words and documents is ln(1 + n) g, for n
occurrences and the global weight g = 1 - H / ln N of the word, where H is the entropy of its occurrences over
the N documents (Bellegarda 2000). The vectors are the rows of U Σ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.vectors.encoded_text import EncodedText
from rescorer_training.vectors.svd import compute_singular_vectors
from rescorer_training.vectors.word_vectors import WordVectors

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def analyse(text: EncodedText, dimensions: int, document_sentences: int = 1, seed: int = 1) -> WordVectors:
    """Compute vectors of the words of a text, those of the largest singular values first.

    Raises:
        ConfigError: a number is out of range, or the text has no more words or documents than dimensions.
    """
    if dimensions < 1 or document_sentences < 1:
        name = "dimensions" if dimensions < 1 else "document sentences"
        raise ConfigError(f"{name}: expected at least 1, got {min(dimensions, document_sentences)}")
    counts = count_documents(text, document_sentences)
    if dimensions >= min(counts.shape):
        raise ConfigError(
            f"dimensions: {dimensions} are too many for {counts.shape[0]:,} words in {counts.shape[1]:,} "
            f"documents; expected at most {min(counts.shape) - 1:,}"
        )
    vectors = compute_singular_vectors(weigh_entries(counts), dimensions, 1.0, seed)
    return WordVectors(text.words, vectors)


def count_documents(text: EncodedText, document_sentences: int) -> csr_array:
    """Count the words of each document: (V, documents) float64. Rare words are left out."""
    from scipy.sparse import coo_array

    ends = text.ids == text.sentence_end
    documents = (np.cumsum(ends) - ends) // document_sentences
    is_word = text.ids < text.sentence_end
    words, documents = text.ids[is_word], documents[is_word].astype(np.int32)
    shape = (len(text.words), int(documents[-1]) + 1)
    return coo_array((np.ones(len(words)), (words, documents)), shape=shape).tocsr()


def weigh_entries(counts: csr_array) -> csr_array:
    """Replace counts by ln(1 + n) g; see above."""
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    shares = counts.data / np.asarray(counts.sum(axis=1)).ravel()[rows]
    entropies = -np.bincount(rows, shares * np.log(shares), counts.shape[0])
    weights = 1 - entropies / np.log(max(counts.shape[1], 2))
    entries = np.log1p(counts.data) * weights[rows]
    return csr_array((entries, counts.indices, counts.indptr), shape=counts.shape)
