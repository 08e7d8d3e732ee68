"""Owns the last words at every node of a trie, and the distinct ones among them."""

from __future__ import annotations

import numpy as np

from rescorer.trie import HypothesisTrie

LARGEST_KEY = np.iinfo(np.int64).max


def node_windows(trie: HypothesisTrie, size: int, start_word: int) -> np.ndarray:
    """The ``size`` words up to each node, oldest first, as indices into the trie's words: (N, size) int64.

    Args:
        start_word: index of what stands before a sentence, as often as it takes.
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
    """The distinct rows, (U, size), and for each row which one of them it is.

    Args:
        rows: (N, size) values from 0 to ``n_values`` - 1. A row is packed into one integer, which sorts many
            times faster than rows do; it is made small again wherever the next value would not fit.
    """
    keys, bound = np.zeros(len(rows), dtype=np.int64), 1
    for values in rows.T:
        if bound > LARGEST_KEY // n_values:
            distinct, keys = np.unique(keys, return_inverse=True)
            bound = len(distinct)
        keys = keys * n_values + values
        bound *= n_values
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], place
