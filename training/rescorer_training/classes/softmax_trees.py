"""Owns the trees of a tree softmax: Huffman's by counts, and trees learned from vectors of the words.

A tree is the children of each of its V-1 decisions, (V-1, 2), as ``TreeSoftmax.set_tree`` takes it: numbers
below V-1 are decisions, each above its parent's, and V-1+w is the word w.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from rescorer.errors import ConfigError

LEAST_SHARE = 0.1
"""Of the words that each side of a decision has, so that no path is long."""
REFINEMENTS = 5
"""Sweeps of power iteration, and of two-means, at a decision: it is settled after few, and there are many."""


def huffman_tree(counts: np.ndarray) -> np.ndarray:
    """The tree with the fewest decisions a word on average (Huffman 1952; for words: Mikolov et al. 2013).

    Args:
        counts: (V,) of the words; never seen ones count a half.
    """
    n_words = len(counts)
    heap = [(max(float(count), 0.5), n_words - 1 + word) for word, count in enumerate(counts)]
    heapq.heapify(heap)
    children = np.empty((n_words - 1, 2), dtype=np.int64)
    for decision in range(n_words - 2, -1, -1):  # the root comes last
        (rarest, first), (rare, second) = heapq.heappop(heap), heapq.heappop(heap)
        children[decision] = first, second
        heapq.heappush(heap, (rarest + rare, decision))
    return children


def vector_tree(vectors: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A tree whose decisions tell apart words of unlike vectors (Mnih & Hinton 2009).

    Every set of words is split in two by weighted two-means that starts from its principal axis, at whatever
    sizes fall out: their ADAPTIVE rule, with two hard means for two Gaussians, and no word in two places.

    Args:
        vectors: (V, D) that are alike for like words: an embedding, or ``neighbour_vectors``.
        counts: (V,) of the words; a word weighs the root of its count.

    Raises:
        ConfigError: there are not as many vectors as counts.
    """
    n_words = len(counts)
    if len(vectors) != n_words:
        raise ConfigError(f"{len(vectors)} vectors for {n_words} words; expected one a word")
    weights = np.sqrt(np.maximum(counts, 0.5))
    children = np.empty((n_words - 1, 2), dtype=np.int64)
    waiting = deque([(np.arange(n_words), 0)] if n_words > 1 else [])
    used = 1
    while waiting:
        words, decision = waiting.popleft()
        for side, part in enumerate(_split(words, vectors, weights)):
            if len(part) == 1:
                children[decision, side] = n_words - 1 + part[0]
            else:
                children[decision, side] = used
                waiting.append((part, used))
                used += 1
    return children


def _split(words: np.ndarray, vectors: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two-means of some words' vectors, neither part with less than ``LEAST_SHARE`` of the words."""
    w = weights[words] / weights[words].sum()
    x = vectors[words] - w @ vectors[words]  # (n, D)
    axis = x[(x * x).sum(axis=1).argmax()]
    for _ in range(REFINEMENTS):
        axis = (w * (x @ axis)) @ x
        axis /= max(float(np.linalg.norm(axis)), 1e-30)
    place = x @ axis  # (n,)
    for _ in range(REFINEMENTS):
        share = w @ (place > 0)
        if not 0 < share < 1:
            break
        above = (w * (place > 0)) @ x / share
        below = -above * share / (1 - share)  # the mean of all is zero
        place = x @ (above - below) - (above @ above - below @ below) / 2
    least = max(1, int(LEAST_SHARE * len(words)))
    first = np.clip(int((place <= 0).sum()), least, len(words) - least)
    order = np.argsort(place, kind="stable")
    return words[order[:first]], words[order[first:]]
