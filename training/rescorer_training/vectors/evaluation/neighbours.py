"""Find the words whose vectors are nearest to that of a word, or to a sum of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError, did_you_mean, quote
from rescorer_training.vectors.word_vectors import WordVectors

SIGNS = {"+": 1, "-": -1}
MAX_SUGGESTIONS = 20_000
"""Number of words, the most frequent ones, among which a similarly spelt one is looked for."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A word near to a query."""

    word: str
    cosine: float


def parse_sum(text: str, vectors: WordVectors) -> list[tuple[int, int]]:
    """Parse a word, or words with ``+`` and ``-`` between blanks, into (sign, row) of each.

    A word that has a vector is taken as it is, whatever characters it contains.

    >>> vectors = WordVectors(("king", "man", "t-shirt"), np.eye(3, dtype=np.float32))
    >>> parse_sum("king - man + t-shirt", vectors)
    [(1, 0), (-1, 1), (1, 2)]

    Raises:
        ConfigError: a word has no vector, or the text is not a sum.
    """
    if text in vectors.index:
        return [(1, vectors.index[text])]
    fields = text.split()
    if fields and fields[0] not in SIGNS:
        fields = ["+", *fields]
    signs, words = fields[::2], fields[1::2]
    if not words or len(signs) != len(words) or not set(signs) <= SIGNS.keys():
        raise ConfigError(f"{quote(text)}: expected a word, or a sum such as 'king - man + woman'")
    for word in words:
        if word not in vectors.index:
            hint = did_you_mean(word, vectors.words[:MAX_SUGGESTIONS])
            raise ConfigError(f"{quote(word)} has no vector{hint}")
    return [(SIGNS[sign], vectors.index[word]) for sign, word in zip(signs, words, strict=True)]


def find_neighbours(
    vectors: WordVectors, terms: Sequence[tuple[int, int]], n_neighbours: int
) -> list[Neighbour]:
    """Find the words with the highest cosine to a sum of vectors of length 1, best first.

    The words of the sum themselves are left out, as in ``distance.c`` and ``word-analogy.c`` of word2vec.

    Args:
        terms: sign and row of each word.

    Raises:
        ConfigError: the sum is zero, so that it has no direction.
    """
    unit_rows = vectors.normalised()
    signs, rows = np.array(terms).T
    target = signs @ unit_rows[rows].astype(np.float64)
    length = np.linalg.norm(target)
    if not length > 1e-6:
        raise ConfigError("the vectors of the sum cancel each other: nothing is near to zero")
    cosines = unit_rows @ (target / length).astype(np.float32)
    cosines[rows] = -np.inf
    n_found = min(n_neighbours, len(vectors) - len(set(rows.tolist())))
    best = np.argsort(-cosines, kind="stable")[:n_found]
    return [Neighbour(vectors.words[row], float(cosines[row])) for row in best]
