"""Find the n-gram context (the preceding n - 1 words) of every node of a trie, and the set of distinct
contexts."""

from __future__ import annotations

import numpy as np

from rescorer.trie import HypothesisTrie

MAX_KEY = np.iinfo(np.int64).max


def node_windows(trie: HypothesisTrie, size: int, start_word: int) -> np.ndarray:
    """The last ``size`` words on the path to each node, oldest first, as indices into the trie's words.

    Args:
        start_word: index that fills the positions before the start of a sentence.

    Returns:
        (N, size) int64.
    """
    windows = np.full((trie.n_nodes, size), start_word, dtype=np.int64)
    for window, context in zip(windows, trie.contexts, strict=False):
        known = context[-size:]
        window[size - len(known) :] = known
    for level in trie.levels():
        windows[level, :-1] = windows[trie.parent[level], 1:]
        windows[level, -1] = trie.node_word[level]
    return windows


def distinct_rows(rows: np.ndarray, n_values: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct rows of a matrix.

    Each row is packed into one integer, because integers sort many times faster than rows. Whenever the next
    column would overflow the integers, they are replaced by their ranks.

    Args:
        rows: (N, size) values from 0 to ``n_values`` - 1.

    Returns:
        (U, size) distinct rows, and for each row of the input its index among them, (N,).
    """
    keys, bound = np.zeros(len(rows), dtype=np.int64), 1
    for values in rows.T:
        if bound > MAX_KEY // n_values:
            distinct, keys = np.unique(keys, return_inverse=True)
            bound = len(distinct)
        keys = keys * n_values + values
        bound *= n_values
    _, first, position = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], position
