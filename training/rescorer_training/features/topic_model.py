"""Fit topics to a text: latent Dirichlet allocation (Blei, Ng & Jordan 2003) by scikit-learn."""

from __future__ import annotations

import numpy as np

from rescorer.errors import ConfigError

BLOCK_WORDS = 256
"""Number of words that are one document."""
MAX_BLOCK_SHARE = 0.4
"""Words that occur in a larger share of the documents are not topical."""
MIN_BLOCKS = 2
"""Words that occur in fewer documents are not topical."""
PASSES = 10
"""Number of passes over the documents."""


def fit_word_topics(ids: np.ndarray, n_words: int, n_topics: int, *, seed: int = 1) -> np.ndarray:
    """Fit topics to a text, and compute what each word says of them.

    The documents are blocks of the text. ``</s>`` and ``<unk>``, ids 0 and 1, are not topical, nor are words
    that are very common or very rare.

    Args:
        ids: (T,) word ids.
        n_words: V, size of the vocabulary.

    Returns:
        (V, K) float32 P(topic | word) under even topics; zeros for words that are not topical.

    Raises:
        ConfigError: scikit-learn is not installed, or the text has too few documents or topical words.
    """
    try:
        from sklearn.decomposition import LatentDirichletAllocation
    except ImportError:
        raise ConfigError(
            "topics need scikit-learn, which the extra 'vectors' of rescorer installs"
        ) from None
    documents = count_blocks(ids, n_words)
    n_blocks = np.bincount(documents.indices, minlength=n_words)
    topical = (n_blocks >= MIN_BLOCKS) & (n_blocks <= max(MIN_BLOCKS, MAX_BLOCK_SHARE * documents.shape[0]))
    topical[:2] = False
    if documents.shape[0] < n_topics or not topical.any():
        raise ConfigError(
            f"the text has {documents.shape[0]:,} blocks of {BLOCK_WORDS} words and {int(topical.sum()):,} "
            f"topical words; expected at least {n_topics} blocks for {n_topics} topics, and one word"
        )
    model = LatentDirichletAllocation(n_topics, max_iter=PASSES, learning_method="online", random_state=seed)
    model.fit(documents[:, topical])
    word_topics = np.zeros((n_words, n_topics), dtype=np.float32)
    by_word = model.exp_dirichlet_component_.T  # exp E[ln P(word | topic)], (topical words, K)
    word_topics[topical] = by_word / by_word.sum(axis=1, keepdims=True)
    return word_topics


def count_blocks(ids: np.ndarray, n_words: int):  # type: ignore[no-untyped-def]
    """Count the words of each block of a text: (blocks, V) scipy CSR matrix."""
    from scipy.sparse import csr_matrix

    blocks = np.arange(len(ids)) // BLOCK_WORDS
    shape = (-(-len(ids) // BLOCK_WORDS), n_words)
    counts = csr_matrix((np.ones(len(ids), dtype=np.float32), (blocks, ids)), shape)
    counts.sum_duplicates()
    return counts
