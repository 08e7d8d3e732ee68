"""Trees of binary decisions with words at their leaves: numbering, checks and paths.

A tree with L leaves is the array of the two children of each of its L-1 decisions, (L-1, 2). A child is a
decision 0 … L-2, with a higher number than its parent and 0 as the root, or L-1+l for the leaf l. Leaves are
numbered by their word: those of word 0 come first, then those of word 1, and so on.
"""

from __future__ import annotations

import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.files.network_config import MAX_PLACES

MAX_PATH_DECISIONS = 128
"""Longest path to a leaf. A Huffman tree over 10^18 counted words needs fewer than 90 decisions; a chain of
decisions would exhaust memory."""


def balanced_tree(n_leaves: int) -> np.ndarray:
    """Children of each decision in a tree whose path lengths differ by at most one, (L-1, 2)."""
    return np.arange(1, 2 * n_leaves - 1).reshape(n_leaves - 1, 2)


def check_places(places: np.ndarray, n_words: int, n_leaves: int) -> None:
    """Raise BundleError unless ``places``, the number of leaves of each word, fits a tree of ``n_leaves``."""
    if places.shape != (n_words,):
        raise BundleError(f"the tree's places have the shape {places.shape}; expected {(n_words,)}")
    if not ((places >= 1) & (places <= MAX_PLACES)).all():
        word = int(np.flatnonzero((places < 1) | (places > MAX_PLACES))[0])
        raise BundleError(f"word {word} has {places[word]} places in the tree; expected 1 to {MAX_PLACES}")
    if (total := int(places.sum(dtype=np.int64))) != n_leaves:
        raise BundleError(f"the words have {total:,} places in the tree; expected its {n_leaves:,} leaves")


def leaf_paths(children: np.ndarray, n_leaves: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the path from the root to every leaf.

    Args:
        children: (L-1, 2).

    Returns:
        (L + 1,) start of each leaf's path; and two flat arrays: the decisions on the paths, root first, and
        the child (0 or 1) taken at each decision.

    Raises:
        BundleError: If ``children`` is not a tree over all leaves, or a path is longer than
            ``MAX_PATH_DECISIONS``.
    """
    parent, side = _parents(children, n_leaves)
    leaves, at = np.arange(n_leaves), np.arange(n_leaves - 1, len(parent))
    steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # from the leaves up
    while len(leaves := leaves[parent[at] >= 0]):
        if len(steps) == MAX_PATH_DECISIONS:
            raise BundleError(f"the tree has a path of more than {MAX_PATH_DECISIONS} decisions")
        at = at[parent[at] >= 0]
        steps.append((leaves, parent[at], side[at]))
        at = parent[at]
    lengths = np.zeros(n_leaves, dtype=np.int64)
    for leaves, _, _ in steps:
        lengths[leaves] += 1
    starts = np.concatenate([[0], lengths.cumsum()])
    nodes, sides = np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int8)
    for distance, (leaves, decisions, taken) in enumerate(steps):
        indices = starts[leaves + 1] - 1 - distance
        nodes[indices], sides[indices] = decisions, taken
    return starts, nodes, sides


def _parents(children: np.ndarray, n_leaves: int) -> tuple[np.ndarray, np.ndarray]:
    """Parent of each decision and leaf (-1 for the root), and which child of it each is (0 or 1): (2L-1,)."""
    n_inner = n_leaves - 1
    if children.shape != (n_inner, 2):
        raise BundleError(
            f"the tree's shape is {children.shape}; expected {(n_inner, 2)} for {n_leaves} leaves"
        )
    own, flat = np.repeat(np.arange(n_inner), 2), children.ravel().astype(np.int64)
    once = np.array_equal(np.sort(flat), np.arange(1, n_inner + n_leaves))
    if not once or ((flat < n_inner) & (flat <= own)).any():
        raise BundleError("the tree does not reach every decision and every leaf exactly once from its root")
    parent, side = np.full(n_inner + n_leaves, -1), np.zeros(n_inner + n_leaves, dtype=np.int8)
    parent[flat], side[flat] = own, np.tile([0, 1], n_inner)
    return parent, side
