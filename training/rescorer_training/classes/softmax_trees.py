"""Build binary trees of words for a tree softmax: Huffman trees, and trees learned from word vectors.

A tree is the array of the two children of each of its V-1 decisions, (V-1, 2), as ``TreeSoftmax.set_tree``
expects it. A child below V-1 is another decision, with a higher number than its parent; child V-1+w is the
word w.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from rescorer.errors import ConfigError

MIN_SIDE_SHARE = 0.1
"""Minimum share of a decision's words on either side, which limits the length of paths."""
SPLIT_ITERATIONS = 5
"""Iterations of power iteration, and of two-means, per decision; few suffice for a good split."""


def build_huffman_tree(counts: np.ndarray) -> np.ndarray:
    """Build the tree with the fewest decisions per word on average (Huffman 1952; Mikolov et al. 2013).

    Args:
        counts: (V,) occurrences of each word; words that never occur count as 0.5.
    """
    n_words = len(counts)
    heap = [(max(float(count), 0.5), n_words - 1 + word) for word, count in enumerate(counts)]
    heapq.heapify(heap)
    children = np.empty((n_words - 1, 2), dtype=np.int64)
    for decision in range(n_words - 2, -1, -1):  # from the leaves to the root, which is decision 0
        (rarest, first), (rare, second) = heapq.heappop(heap), heapq.heappop(heap)
        children[decision] = first, second
        heapq.heappush(heap, (rarest + rare, decision))
    return children


def build_vector_tree(vectors: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Build a tree whose decisions separate words with dissimilar vectors (Mnih & Hinton 2009).

    Every set of words is split by weighted two-means that starts from the set's principal axis; the sizes of
    the two sides follow from the data. This is the paper's ADAPTIVE rule, with two hard means instead of two
    Gaussians, and with every word at a single leaf.

    Args:
        vectors: (V, D) vectors that are similar for similar words, such as an embedding or the result of
            ``compute_neighbour_vectors``.
        counts: (V,) occurrences of each word; a word is weighted with the square root of its count.

    Raises:
        ConfigError: the numbers of vectors and counts differ.
    """
    n_words = len(counts)
    if len(vectors) != n_words:
        raise ConfigError(f"{len(vectors)} vectors for {n_words} words; expected one per word")
    weights = np.sqrt(np.maximum(counts, 0.5))
    children = np.empty((n_words - 1, 2), dtype=np.int64)
    pending = deque([(np.arange(n_words), 0)] if n_words > 1 else [])
    n_decisions = 1
    while pending:
        words, decision = pending.popleft()
        for side, part in enumerate(_split(words, vectors, weights)):
            if len(part) == 1:
                children[decision, side] = n_words - 1 + part[0]
            else:
                children[decision, side] = n_decisions
                pending.append((part, n_decisions))
                n_decisions += 1
    return children


def _split(words: np.ndarray, vectors: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split words by two-means of their vectors, with at least ``MIN_SIDE_SHARE`` of them on either side."""
    w = weights[words] / weights[words].sum()
    x = vectors[words] - w @ vectors[words]  # (n, D)
    axis = x[(x * x).sum(axis=1).argmax()]
    for _ in range(SPLIT_ITERATIONS):
        axis = (w * (x @ axis)) @ x
        axis /= max(float(np.linalg.norm(axis)), 1e-30)
    projection = x @ axis  # (n,)
    for _ in range(SPLIT_ITERATIONS):
        share = w @ (projection > 0)
        if not 0 < share < 1:
            break
        above = (w * (projection > 0)) @ x / share
        below = -above * share / (1 - share)  # the mean of all words is zero
        projection = x @ (above - below) - (above @ above - below @ below) / 2
    min_words = max(1, int(MIN_SIDE_SHARE * len(words)))
    n_first = np.clip(int((projection <= 0).sum()), min_words, len(words) - min_words)
    order = np.argsort(projection, kind="stable")
    return words[order[:n_first]], words[order[n_first:]]
