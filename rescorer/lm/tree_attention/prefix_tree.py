"""Put the prefixes of contexts and hypotheses into one tree, in preorder.

The root is the start word. Below it come the distinct prefixes of the contexts, and below each context the
trie of its hypotheses, so that contexts that begin alike are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.trie import SENTENCE_END, HypothesisTrie, Words, build_trie


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Nodes of a tree, parents before children, first those of contexts."""

    parent: np.ndarray
    """(N,) parent of each node; the root, node 0, is its own parent."""
    word: np.ndarray
    """(N,) the model's id of the word on the edge into each node."""
    position: np.ndarray
    """(N,) number of words before that word."""
    first: np.ndarray
    """(N,) number of the node in preorder."""
    last: np.ndarray
    """(N,) number of the last node of its subtree in preorder."""
    context_levels: Sequence[slice]
    """Nodes of contexts, by their number of words, without the root."""
    trie_nodes: np.ndarray
    """Node of each node of the trie."""

    @property
    def n_contexts(self) -> int:
        """Number of nodes of contexts, with the root."""
        return self.context_levels[-1].stop if self.context_levels else 1


def build_prefix_tree(
    trie: HypothesisTrie, ids: np.ndarray, encode: Callable[[Words], np.ndarray], start_word: int
) -> PrefixTree:
    """Build the tree of a batch.

    Args:
        ids: the model's ids of the trie's words.
        encode: returns the model's ids of words, and that of ``</s>`` for ``SENTENCE_END``.
    """
    words = (*trie.words, SENTENCE_END)
    contexts = build_trie([tuple(words[i] for i in context) for context in trie.contexts])
    shift = contexts.n_nodes - trie.n_roots
    trie_nodes = np.concatenate([contexts.hypothesis_node, np.arange(trie.n_roots, trie.n_nodes) + shift])
    parent = np.concatenate([contexts.parent, trie_nodes[trie.parent[trie.n_roots :]]])
    word = np.concatenate(
        [
            [start_word],
            np.append(encode(contexts.words), 0)[contexts.node_word[1:]],
            ids[trie.node_word[trie.n_roots :]],
        ]
    )
    trie_levels = [slice(level.start + shift, level.stop + shift) for level in trie.levels()]
    levels = [*contexts.levels(), *trie_levels]
    position = np.zeros(len(parent), dtype=np.int64)
    for level in levels:
        position[level] = position[parent[level]] + 1
    first, last = number_in_preorder(parent, levels)
    return PrefixTree(parent, word, position, first, last, contexts.levels(), trie_nodes)


def number_in_preorder(parent: np.ndarray, levels: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
    """Number of each node in preorder, and of the last node of its subtree, (N,) each.

    Args:
        levels: ranges of nodes; the children of a node are in later ranges.
    """
    sizes = np.ones(len(parent), dtype=np.int64)
    for level in reversed(levels):
        np.add.at(sizes, parent[level], sizes[level])
    first = np.zeros(len(parent), dtype=np.int64)
    free = first + 1  # number of the next child of each node
    for level in levels:
        # Siblings side by side: those below equal contexts, which only differ in earlier sentences, are not.
        nodes = level.start + np.argsort(parent[level], kind="stable")
        above, size = parent[nodes], sizes[nodes]
        before = np.cumsum(size) - size
        is_eldest = np.diff(above, prepend=-1) != 0
        before -= before[is_eldest][np.cumsum(is_eldest) - 1]
        first[nodes] = free[above] + before
        free[nodes] = first[nodes] + 1
        np.add.at(free, above, size)
    return first, first + sizes - 1


def needed_context_nodes(tree: PrefixTree, window: int, cached: np.ndarray) -> np.ndarray:
    """Which nodes of contexts are needed to compute the vectors of the trie.

    These are the roots of the trie, and the ``window`` - 1 nodes above each node that is computed.

    Args:
        cached: (n_contexts,) bool, nodes that need not be computed.

    Returns:
        (n_contexts,) bool.
    """
    reach = np.zeros(tree.n_contexts, dtype=np.int64)  # number of nodes that are needed from here upwards
    roots = tree.trie_nodes[tree.trie_nodes < tree.n_contexts]
    reach[roots] = max(1, window - 1)
    for level in reversed(tree.context_levels):
        above = np.where(cached[level], reach[level] - 1, np.where(reach[level] > 0, window - 1, 0))
        np.maximum.at(reach, tree.parent[level], above)
    return reach > 0
