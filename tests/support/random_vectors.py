"""Random word vectors, for tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rescorer_training.vectors.files import WordVectors

WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters=" \ufeff"), min_size=1
)
"""Words of any characters that every format can hold."""
VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def word_vectors(draw: st.DrawFn, words: st.SearchStrategy[str] = WORDS) -> WordVectors:
    """A few words with vectors of any finite values."""
    chosen = draw(st.lists(words, unique=True, min_size=1, max_size=6))
    dimensions = draw(st.integers(1, 5))
    size = len(chosen) * dimensions
    values = draw(st.lists(VALUES, min_size=size, max_size=size))
    return WordVectors(tuple(chosen), np.array(values, np.float32).reshape(len(chosen), dimensions))


def random_vectors(n_words: int = 100, dimensions: int = 8, seed: int = 0) -> WordVectors:
    """Words w0, w1, … with normally distributed vectors."""
    matrix = np.random.default_rng(seed).standard_normal((n_words, dimensions)).astype(np.float32)
    return WordVectors(tuple(f"w{number}" for number in range(n_words)), matrix)
