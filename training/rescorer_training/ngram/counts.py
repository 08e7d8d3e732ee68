"""Count the distinct n-grams of every order, as flat arrays.

An n-gram is represented by its prefix (a row of the table one order lower) and its last word. The two are
packed into one integer, which suffices for any order and any size of the vocabulary. No n-gram crosses a
sentence boundary, and each sentence begins with one ``<s>``.
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
    """(N,) int64: occurrences in the text."""
    starts_sentence: np.ndarray
    """(N,) bool: True if w_1 is ``<s>``; no word can precede such an n-gram."""

    def __len__(self) -> int:
        return len(self.word)


def count_ngrams(
    ids: np.ndarray, order: int, *, n_words: int, start_id: int, end_id: int
) -> list[NGramCounts]:
    """Count every n-gram of orders 1 to ``order``.

    Args:
        ids: (T,) word ids, every sentence closed by ``end_id`` and none containing ``start_id``.
        n_words: size of the vocabulary; every id is smaller.
        start_id: id of ``<s>``.
        end_id: id of ``</s>``.

    Returns:
        One table per order, empty if no sentence is long enough.
    """
    words, position = insert_sentence_starts(ids, start_id, end_id)
    unigrams = NGramCounts(
        prefix=np.zeros(n_words, np.int32),
        suffix=np.zeros(n_words, np.int32),
        word=np.arange(n_words, dtype=np.int32),
        count=np.bincount(words, minlength=n_words),
        starts_sentence=np.arange(n_words) == start_id,
    )
    tables = [unigrams]
    rows = words  # row of the n-gram that ends at each token, in the table of the current order
    for n in range(2, order + 1):
        last = np.flatnonzero(position >= n - 1).astype(np.int32)  # tokens where an n-gram of this order ends
        table, found = _count_one_order(rows, words, last, position, n, n_words)
        tables.append(table)
        rows = np.zeros_like(words)
        rows[last] = found
    return tables


def insert_sentence_starts(ids: np.ndarray, start_id: int, end_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Insert ``start_id`` before each sentence.

    Returns:
        (T + S,) int32 word ids, and (T + S,) int32 positions within the sentence, 0 for ``start_id``.
    """
    ends = np.flatnonzero(ids == end_id)
    starts = np.concatenate([[0], ends[:-1] + 1])
    words = np.insert(ids, starts, start_id)
    starts += np.arange(len(starts))
    lengths = np.diff(starts, append=len(words))
    position = np.arange(len(words), dtype=np.int32)
    position -= np.repeat(starts.astype(np.int32), lengths)
    return words, position


def _count_one_order(
    rows: np.ndarray, words: np.ndarray, last: np.ndarray, position: np.ndarray, n: int, n_words: int
) -> tuple[NGramCounts, np.ndarray]:
    """Return the table of order ``n``, and the row of the n-gram that ends at each of ``last``: (len(last),).

    ``rows`` contains, for each token, the row of the n-gram one order lower that ends there.
    """
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
        starts_sentence=position[example] == n - 1,
    )
    found = np.empty(len(last), np.int32)
    found[by_key] = np.cumsum(is_new, dtype=np.int32) - 1
    return table, found
