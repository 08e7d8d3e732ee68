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
    """(N,) int64: occurrences in the text; 0, with a gap, for n-grams that are only contexts of others."""
    starts_sentence: np.ndarray
    """(N,) bool: True if w_1 is ``<s>``."""

    def __len__(self) -> int:
        return len(self.word)


def count_ngrams(
    ids: np.ndarray, order: int, *, n_words: int, start_id: int, end_id: int, skip: int = 0
) -> list[NGramCounts]:
    """Count every n-gram of orders 1 to ``order``.

    With a gap, the context w_1 … w_{n-1} of a word w_n ends ``skip`` words before it. Contexts themselves
    have no gap. So a table contains both predictions, which are counted, and contexts of the next table.

    Args:
        ids: (T,) word ids, every sentence closed by ``end_id`` and none containing ``start_id``.
        n_words: size of the vocabulary; every id is smaller.
        start_id: id of ``<s>``; 1 + ``skip`` of them precede each sentence.
        end_id: id of ``</s>``.
        skip: number of words between a context and the word that it predicts.

    Returns:
        One table per order, empty if no sentence is long enough.
    """
    words, position = insert_sentence_starts(ids, start_id, end_id, 1 + skip)
    unigrams = NGramCounts(
        prefix=np.zeros(n_words, np.int32),
        suffix=np.zeros(n_words, np.int32),
        word=np.arange(n_words, dtype=np.int32),
        count=np.bincount(words, minlength=n_words),
        starts_sentence=np.arange(n_words) == start_id,
    )
    tables = [unigrams]
    # rows of the n-grams that end at each token, in the table of the current order: its words are contiguous,
    # or the last one is predicted over the gap
    rows = gap_rows = words
    for n in range(2, order + 1):
        predicted = np.flatnonzero(position >= n - 1 + skip).astype(np.int32)
        contexts = find_contexts(position, n, skip) if skip and n < order else predicted[:0]
        ends = np.concatenate([predicted, contexts])
        prefix = np.concatenate([rows[predicted - 1 - skip], rows[contexts - 1]])
        suffix = np.concatenate([gap_rows[predicted], rows[contexts]])
        table, found = _count_one_order(prefix, suffix, words[ends], len(predicted), tables[-1], n_words)
        tables.append(table)
        gap_rows, rows = np.zeros_like(words), np.zeros_like(words)
        gap_rows[predicted] = found[: len(predicted)]
        rows[contexts] = found[len(predicted) :]
        rows = rows if skip else gap_rows
    return tables


def insert_sentence_starts(
    ids: np.ndarray, start_id: int, end_id: int, n_starts: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Insert ``start_id`` before each sentence, ``n_starts`` times.

    Returns:
        Word ids and positions within the sentence, 0 for the first ``start_id``: both (T + S · n_starts,)
        int32, for S sentences.
    """
    ends = np.flatnonzero(ids == end_id)
    starts = np.concatenate([[0], ends[:-1] + 1])
    words = np.insert(ids, np.repeat(starts, n_starts), start_id)
    starts += n_starts * np.arange(len(starts))
    lengths = np.diff(starts, append=len(words))
    position = np.arange(len(words), dtype=np.int32)
    position -= np.repeat(starts.astype(np.int32), lengths)
    return words, position


def find_contexts(position: np.ndarray, n: int, skip: int) -> np.ndarray:
    """The tokens at which n words of a sentence end that are the context of a later word, over the gap."""
    ahead = 1 + skip
    is_context = (position[:-ahead] >= n - 1) & (position[ahead:] == position[:-ahead] + ahead)
    return np.flatnonzero(is_context).astype(np.int32)


def _count_one_order(
    prefix: np.ndarray,
    suffix: np.ndarray,
    words: np.ndarray,
    n_counted: int,
    lower: NGramCounts,
    n_words: int,
) -> tuple[NGramCounts, np.ndarray]:
    """Make the table of one order from the n-grams at (M,) places.

    Args:
        prefix: (M,) rows in the table ``lower``, and so ``suffix``; ``words``: (M,) last words.
        n_counted: the first so many places are counted.

    Returns:
        The table, and the row of the n-gram at each place, (M,).
    """
    keys = prefix.astype(np.int64)
    keys *= n_words
    keys += words
    by_key = np.argsort(keys)
    keys = keys[by_key]
    is_new = np.concatenate([np.ones(min(1, len(keys)), bool), keys[1:] != keys[:-1]])
    found = np.empty(len(keys), np.int32)
    found[by_key] = np.cumsum(is_new, dtype=np.int32) - 1
    example = by_key[is_new]  # one place of each distinct n-gram
    table = NGramCounts(
        prefix=prefix[example],
        suffix=suffix[example],
        word=words[example],
        count=np.bincount(found[:n_counted], minlength=len(example)),
        starts_sentence=lower.starts_sentence[prefix[example]],
    )
    return table, found
