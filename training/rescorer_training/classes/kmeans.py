"""Owns k-means over word vectors, with a limit to the size of a cluster."""

from __future__ import annotations

import numpy as np

SWEEPS = 30
"""At most so many; the assignment has long been settled by then."""


def kmeans(vectors: np.ndarray, n_clusters: int, *, largest: int | None = None, seed: int = 1) -> np.ndarray:
    """Spherical k-means: clusters of vectors that point the same way (Dhillon & Modha 2001).

    Args:
        vectors: (N, D), N ≥ ``n_clusters``.
        largest: points that a cluster may have; None: any number.

    Returns:
        (N,) cluster of each vector; none is empty.
    """
    points = vectors - vectors.mean(axis=0)  # what all words share tells none from another
    points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    random = np.random.default_rng(seed)
    centres = _far_apart(points, n_clusters, random)
    assigned = np.full(len(points), -1)
    for _ in range(SWEEPS):
        likeness = points @ centres.T  # (N, K)
        before, assigned = assigned, _assign(likeness, largest or len(points))
        _fill_empty(assigned, likeness)
        if np.array_equal(before, assigned):
            break
        centres = np.stack([points[assigned == k].sum(axis=0) for k in range(n_clusters)])
        centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    return assigned


def _far_apart(points: np.ndarray, n: int, random: np.random.Generator) -> np.ndarray:
    """First centres, each drawn by its distance to those before (Arthur & Vassilvitskii 2007): (n, D)."""
    chosen = [int(random.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    for _ in range(n - 1):
        distance = np.minimum(distance, np.maximum(1 - points @ points[chosen[-1]], 0))
        distance[chosen] = 0
        total = distance.sum()
        left = np.setdiff1d(np.arange(len(points)), chosen)
        chosen.append(int(random.choice(len(points), p=distance / total) if total > 0 else left[0]))
    return points[chosen]


def _assign(likeness: np.ndarray, largest: int) -> np.ndarray:
    """The likest cluster of each point; a full cluster keeps its likest points, the others go on."""
    likeness = likeness.copy()
    assigned = np.full(len(likeness), -1)
    room = np.full(likeness.shape[1], largest)
    homeless = np.arange(len(likeness))
    while len(homeless):
        wish = likeness[homeless].argmax(axis=1)
        order = np.lexsort((-likeness[homeless, wish], wish))
        wish, homeless = wish[order], homeless[order]
        place = np.arange(len(wish)) - np.searchsorted(wish, wish)  # in the queue of its cluster
        taken = place < room[wish]
        assigned[homeless[taken]] = wish[taken]
        room -= np.bincount(wish[taken], minlength=len(room))
        likeness[:, room == 0] = -np.inf
        homeless = homeless[~taken]
    return assigned


def _fill_empty(assigned: np.ndarray, likeness: np.ndarray) -> None:
    """Gives every empty cluster the point, of clusters with several, that suits its own least."""
    sizes = np.bincount(assigned, minlength=likeness.shape[1])
    fit = likeness[np.arange(len(assigned)), assigned]
    for empty in np.flatnonzero(sizes == 0):
        point = int(np.where(sizes[assigned] > 1, fit, np.inf).argmin())
        sizes[assigned[point]] -= 1
        assigned[point], sizes[empty], fit[point] = empty, 1, np.inf
