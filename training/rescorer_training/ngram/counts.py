"""Owns counting: the distinct n-grams of every order up to the highest, with raw counts, as flat arrays.

An n-gram is its prefix (a row of the table one order lower) and its last word, so that a pair of integers
packed into one names an n-gram of any order, whatever the vocabulary's size. No n-gram crosses a
sentence's border; one ``<s>`` opens each sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class NGramCounts:
    """The distinct n-grams of one order, sorted by (prefix, word); at order 1 row i is word i."""

    prefix: np.ndarray
    """(N,) int32: row of w_1 … w_{n-1} one order lower; zeros at order 1."""
    suffix: np.ndarray
    """(N,) int32: row of w_2 … w_n one order lower; zeros at order 1."""
    word: np.ndarray
    """(N,) int32: id of w_n."""
    count: np.ndarray
    """(N,) int64: how often the n-gram occurs in the text."""
    starts_sentence: np.ndarray
    """(N,) bool: w_1 is ``<s>``, so that nothing can stand to the left of the n-gram."""

    def __len__(self) -> int:
        return len(self.word)


def count_ngrams(ids: np.ndarray, order: int, *, n_words: int, begin: int, end: int) -> list[NGramCounts]:
    """Counts every n-gram of orders 1 to ``order``.

    Args:
        ids: (T,) word ids, every sentence closed by ``end`` and none containing ``begin``.
        n_words: size of the vocabulary; ids are below it.

    Returns:
        One table an order. A table may be empty, where no sentence is long enough.
    """
    words, place = open_sentences(ids, begin, end)
    unigrams = NGramCounts(
        prefix=np.zeros(n_words, np.int32),
        suffix=np.zeros(n_words, np.int32),
        word=np.arange(n_words, dtype=np.int32),
        count=np.bincount(words, minlength=n_words),
        starts_sentence=np.arange(n_words) == begin,
    )
    tables = [unigrams]
    rows = words  # row of the n-gram that ends at each token, in the table of the order at hand
    for n in range(2, order + 1):
        last = np.flatnonzero(place >= n - 1).astype(np.int32)  # where an n-gram of this order ends
        table, found = _count_one_order(rows, words, last, place, n, n_words)
        tables.append(table)
        rows = np.zeros_like(words)
        rows[last] = found
    return tables


def open_sentences(ids: np.ndarray, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Puts ``begin`` before each sentence.

    Returns:
        (T + S,) int32 word ids, and (T + S,) int32 places within the sentence, 0 for ``begin``.
    """
    ends = np.flatnonzero(ids == end)
    starts = np.concatenate([[0], ends[:-1] + 1])
    words = np.insert(ids, starts, begin)
    starts += np.arange(len(starts))
    lengths = np.diff(starts, append=len(words))
    place = np.arange(len(words), dtype=np.int32)
    place -= np.repeat(starts.astype(np.int32), lengths)
    return words, place


def _count_one_order(
    rows: np.ndarray, words: np.ndarray, last: np.ndarray, place: np.ndarray, n: int, n_words: int
) -> tuple[NGramCounts, np.ndarray]:
    """The table of one order, and the row in it of the n-gram that ends at each of ``last``: (len(last),)."""
    keys = rows[last - 1].astype(np.int64)
    keys *= n_words
    keys += words[last]
    by_key = np.argsort(keys)
    keys = keys[by_key]
    is_new = np.concatenate([np.ones(min(1, len(keys)), bool), keys[1:] != keys[:-1]])
    first = np.flatnonzero(is_new)
    example = last[by_key[first]]  # one token where each distinct n-gram ends
    table = NGramCounts(
        prefix=rows[example - 1],
        suffix=rows[example],
        word=words[example],
        count=np.diff(first, append=len(keys)),
        starts_sentence=place[example] == n - 1,
    )
    found = np.empty(len(last), np.int32)
    found[by_key] = np.cumsum(is_new, dtype=np.int32) - 1
    return table, found
