"""Build binary trees of words for a tree softmax: Huffman trees, and trees learned from word vectors.

An inner node of a tree is a decision between two sides. ``rescorer.models.tree_softmax`` says how decisions
and leaves are numbered.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from rescorer.errors import ConfigError

MIN_SIDE_SHARE = 0.1
"""Each side of a decision gets at least this share of the decision's words. It limits the length of paths."""
MOST_PLACES = 8
"""Largest number of leaves that a learned tree gives one word."""
MIN_SHARED_WORDS = 8
"""Number of words from which on some words of a set may go to both sides of its decision."""
SPLIT_ITERATIONS = 5
"""Steps of power iteration per decision, and steps of two-means. A few suffice for a good split."""


def build_huffman_tree(counts: np.ndarray) -> np.ndarray:
    """Build the tree with the fewest decisions per word on average (Huffman 1952; Mikolov et al. 2013).

    Args:
        counts: (V,) occurrences of each word. A word that never occurs counts as 0.5.

    Returns:
        (V-1, 2) children of each decision.
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


def build_vector_tree(
    vectors: np.ndarray, counts: np.ndarray, overlap: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Build a tree whose decisions separate words with dissimilar vectors (Mnih & Hinton 2009).

    Every set of words is split by weighted two-means, which starts from the principal axis of the set. The
    sizes of the two sides follow from the data. This is the paper's ADAPTIVE(ε) rule, except that the split
    uses two hard means instead of two Gaussians. Gaussians only say afterwards with which probability a word
    belongs to each side.

    Args:
        vectors: (V, D) vectors that are similar for similar words, such as an embedding or the result of
            ``compute_neighbour_vectors`` or ``compute_context_vectors``.
        counts: (V,) occurrences of each word. A word is weighted with the square root of its count.
        overlap: ε. A word goes to both sides if its probability of belonging to a side differs from 1/2 by at
            most ε, and it has fewer than ``MOST_PLACES`` leaves. 0 gives every word one leaf.

    Returns:
        (L-1, 2) children of each decision, and (V,) number of leaves of each word.

    Raises:
        ConfigError: the numbers of vectors and counts differ.
    """
    n_words = len(counts)
    if len(vectors) != n_words:
        raise ConfigError(f"{len(vectors)} vectors for {n_words} words; expected one per word")
    weights = np.sqrt(np.maximum(counts, 0.5))
    places = np.ones(n_words, dtype=np.int32)
    sides: list[list[int]] = []  # of each decision: another decision, or -1-w for a leaf of the word w
    pending = deque([np.arange(n_words)] if n_words > 1 else [])
    n_decisions = len(pending)
    while pending:
        words = pending.popleft()
        sides.append([])
        for part in _split(words, vectors, weights, places, overlap):
            if len(part) == 1:
                sides[-1].append(-1 - int(part[0]))
            else:
                sides[-1].append(n_decisions)
                pending.append(part)
                n_decisions += 1
    return _number_leaves(np.array(sides, dtype=np.int64).reshape(-1, 2)), places


def _number_leaves(sides: np.ndarray) -> np.ndarray:
    """Number the leaves: replace each entry -1-w, a leaf of word w, by the next number for leaves of w."""
    children, flat = sides.copy(), sides.ravel()
    at = np.flatnonzero(flat < 0)
    children.ravel()[at[np.argsort(-flat[at], kind="stable")]] = len(sides) + np.arange(len(at))
    return children


def _split(
    words: np.ndarray, vectors: np.ndarray, weights: np.ndarray, places: np.ndarray, overlap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Split words by two-means of their vectors, so that each side gets at least ``MIN_SIDE_SHARE`` of them.

    If a word goes to both sides, its number of leaves in ``places`` grows by one.
    """
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
    first, second = order[:n_first], order[n_first:]
    if overlap and len(words) >= MIN_SHARED_WORDS:
        shared = np.abs(_responsibilities(x, w, first, second) - 0.5) <= overlap
        shared &= places[words] < MOST_PLACES
        places[words[shared]] += 1
        first, second = (np.union1d(side, np.flatnonzero(shared)) for side in (first, second))
    return words[first], words[second]


def _responsibilities(x: np.ndarray, w: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute the probability with which each vector belongs to the second side, (n,).

    The sides are modelled as two equally probable Gaussians, which share one variance for all directions.

    Args:
        x: (n, D) vectors.
        w: (n,) weights, which sum to 1.
        first, second: indices of the vectors of either side.
    """
    (first_distances, first_spread), (second_distances, second_spread) = (
        _squared_distances(x, w, side) for side in (first, second)
    )
    variance = max((first_spread + second_spread) / x.shape[1], 1e-30)
    logits = (first_distances - second_distances) / (2 * variance)
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -500, 500))))


def _squared_distances(x: np.ndarray, w: np.ndarray, side: np.ndarray) -> tuple[np.ndarray, float]:
    """Return vectors' squared distances from a side's mean, (n,), and their weighted sum over the side."""
    mean = w[side] @ x[side] / w[side].sum()
    distances = ((x - mean) ** 2).sum(axis=1)
    return distances, float(w[side] @ distances[side])
