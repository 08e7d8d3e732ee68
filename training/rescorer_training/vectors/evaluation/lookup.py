"""Look up words of questions in word vectors, without regard to case.

The questions and sets that are in use capitalise names, and most vocabularies are lower case. As in
``compute-accuracy.c`` of word2vec and in gensim, words are therefore the same if their lower case is; of
several such words in a vocabulary, the most frequent one is meant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from rescorer_training.vectors.word_vectors import WordVectors


class FoldedVectors:
    """Vectors of length 1, found by the lower case of their words."""

    def __init__(self, vectors: WordVectors) -> None:
        self._words = vectors.words
        self.unit_rows = vectors.normalised()
        """(V, D) float32."""

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """Rows of each lower-cased word, the most frequent first."""
        rows = defaultdict(list)
        for row, word in enumerate(self._words):
            rows[word.lower()].append(row)
        return dict(rows)

    def find(self, words: Iterable[str]) -> list[int] | None:
        """Return the row of each word; None if one has no vector."""
        found = [self.rows.get(word.lower(), []) for word in words]
        return [rows[0] for rows in found] if all(found) else None

    def lower(self, row: int) -> str:
        """Lower case of the word of a row."""
        return self._words[row].lower()

    def cosines(self, pairs: np.ndarray) -> np.ndarray:
        """Cosine of each pair of rows, (N, 2) -> (N,) float64."""
        first, second = self.unit_rows[pairs.T].astype(np.float64)
        return np.asarray((first * second).sum(axis=1))
