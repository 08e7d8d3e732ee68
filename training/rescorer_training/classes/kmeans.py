"""Cluster word vectors by k-means with a limit on the size of a cluster."""

from __future__ import annotations

import numpy as np

MAX_ITERATIONS = 30
"""Maximum number of iterations; assignments stop changing long before."""


def kmeans(
    vectors: np.ndarray, n_clusters: int, *, max_cluster_size: int | None = None, seed: int = 1
) -> np.ndarray:
    """Cluster vectors by direction: spherical k-means (Dhillon & Modha 2001).

    Args:
        vectors: (N, D), N ≥ ``n_clusters``.
        max_cluster_size: maximum number of vectors per cluster; None for no limit.
        seed: random seed of the initial centres.

    Returns:
        (N,) cluster of each vector; no cluster is empty.
    """
    points = vectors - vectors.mean(axis=0)  # remove what all words have in common
    points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    random = np.random.default_rng(seed)
    centres = _pick_initial_centres(points, n_clusters, random)
    assigned = np.full(len(points), -1)
    for _ in range(MAX_ITERATIONS):
        similarity = points @ centres.T  # (N, K)
        before, assigned = assigned, _assign(similarity, max_cluster_size or len(points))
        _fill_empty_clusters(assigned, similarity)
        if np.array_equal(before, assigned):
            break
        centres = np.stack([points[assigned == k].sum(axis=0) for k in range(n_clusters)])
        centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    return assigned


def _pick_initial_centres(points: np.ndarray, n: int, random: np.random.Generator) -> np.ndarray:
    """Draw initial centres, (n, D), each with probabilities that grow with the distance to the earlier ones.

    This is k-means++ (Arthur & Vassilvitskii 2007).
    """
    chosen = [int(random.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    for _ in range(n - 1):
        distance = np.minimum(distance, np.maximum(1 - points @ points[chosen[-1]], 0))
        distance[chosen] = 0
        total = distance.sum()
        remaining = np.setdiff1d(np.arange(len(points)), chosen)
        chosen.append(int(random.choice(len(points), p=distance / total) if total > 0 else remaining[0]))
    return points[chosen]


def _assign(similarity: np.ndarray, max_cluster_size: int) -> np.ndarray:
    """Assign each point to its most similar cluster.

    A cluster that is full keeps the points most similar to it; the others go to their next best cluster.
    """
    similarity = similarity.copy()
    assigned = np.full(len(similarity), -1)
    room = np.full(similarity.shape[1], max_cluster_size)
    unassigned = np.arange(len(similarity))
    while len(unassigned):
        preferred = similarity[unassigned].argmax(axis=1)
        order = np.lexsort((-similarity[unassigned, preferred], preferred))
        preferred, unassigned = preferred[order], unassigned[order]
        rank = np.arange(len(preferred)) - np.searchsorted(preferred, preferred)  # within its cluster
        accepted = rank < room[preferred]
        assigned[unassigned[accepted]] = preferred[accepted]
        room -= np.bincount(preferred[accepted], minlength=len(room))
        similarity[:, room == 0] = -np.inf
        unassigned = unassigned[~accepted]
    return assigned


def _fill_empty_clusters(assigned: np.ndarray, similarity: np.ndarray) -> None:
    """Fill each empty cluster with the point least similar to its own cluster; empty no other cluster."""
    sizes = np.bincount(assigned, minlength=similarity.shape[1])
    fit = similarity[np.arange(len(assigned)), assigned]
    for empty in np.flatnonzero(sizes == 0):
        point = int(np.where(sizes[assigned] > 1, fit, np.inf).argmin())
        sizes[assigned[point]] -= 1
        assigned[point], sizes[empty], fit[point] = empty, 1, np.inf
