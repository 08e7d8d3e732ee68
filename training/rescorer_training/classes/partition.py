"""Assign words to output classes, and order the vocabulary so that every class is a range of ids."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.models.network_files import END, START, UNKNOWN, Vocabulary
from rescorer_training.classes.brown import find_brown_clusters

MAX_ITERATIONS = 30
"""Maximum number of iterations of k-means. Assignments stop changing long before."""


def kmeans(vectors: np.ndarray, n_clusters: int, max_cluster_size: int | None, seed: int = 1) -> np.ndarray:
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
    """Draw initial centres, (n, D), by k-means++ (Arthur & Vassilvitskii 2007).

    A point becomes a centre with a probability that grows with its distance from the earlier centres.
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

    A full cluster keeps the points that are most similar to it. Points that it does not keep go to their
    next best clusters.
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
    """Fill each empty cluster with the point that fits worst where it is, but empty no other cluster."""
    sizes = np.bincount(assigned, minlength=similarity.shape[1])
    fit = similarity[np.arange(len(assigned)), assigned]
    for empty in np.flatnonzero(sizes == 0):
        point = int(np.where(sizes[assigned] > 1, fit, np.inf).argmin())
        sizes[assigned[point]] -= 1
        assigned[point], sizes[empty], fit[point] = empty, 1, np.inf


@dataclass(frozen=True, slots=True)
class ClassOrder:
    """An order of the vocabulary in which every class is a range of ids.

    ``</s>`` and ``<unk>`` keep their ids, 0 and 1; within a class, words are in the order of their old ids.
    """

    order: np.ndarray
    """(V,) old id of each new id."""
    class_sizes: tuple[int, ...]
    """Number of words of each class."""

    @classmethod
    def from_classes(cls, class_of: np.ndarray, counts: np.ndarray) -> ClassOrder:
        """Put the class of ``</s>`` first, then that of ``<unk>``, then the others by falling count.

        Args:
            class_of: (V,) class of each word, from 0 to C-1. No class is empty, and ``</s>`` shares its class
                with no word except ``<unk>``.
            counts: (V,) occurrences of each word.
        """
        mass = np.bincount(class_of, counts)
        mass[class_of[1]] = np.inf
        rank = np.empty(len(mass), dtype=np.int64)
        rank[np.argsort(-mass, kind="stable")] = np.arange(len(mass))
        rank[class_of[0]] = -1
        order = np.argsort(rank[class_of], kind="stable")
        bounds = np.flatnonzero(np.diff(class_of[order])) + 1
        sizes = np.diff(np.concatenate([[0], bounds, [len(order)]]))
        return cls(order, tuple(int(size) for size in sizes))

    @property
    def class_of(self) -> np.ndarray:
        """(V,) class of each old id."""
        classes = np.empty(len(self.order), dtype=np.int64)
        classes[self.order] = np.repeat(np.arange(len(self.class_sizes)), self.class_sizes)
        return classes


def order_vocabulary(counts: Mapping[str, int], words: Iterable[str]) -> Vocabulary:
    """Return a vocabulary of ``</s>``, ``<unk>``, the words by falling count, and ``<s>``.

    Classes of words of similar frequency are then ranges of ids.
    """
    regular = set(words) - {START, END, UNKNOWN}
    return Vocabulary((END, UNKNOWN, *sorted(regular, key=lambda word: (-counts.get(word, 0), word)), START))


def choose_class_count(n_words: int) -> int:
    """Return √V: so many classes have about √V words each, and both softmaxes of a word are small."""
    return max(1, math.isqrt(n_words))


def bin_by_frequency(counts: np.ndarray, n_classes: int, power: float = 0.5) -> tuple[int, ...]:
    """Divide words into classes that have about the same Σ count^power.

    Power 1 gives classes of equal mass as in Mikolov et al. (2011), among them one huge class of rare words.
    The default of 0.5 is the ``-new`` binning of Mikolov's toolkit, whose classes are far smaller.

    Args:
        counts: (V,) in vocabulary order, which is by falling count.

    Returns:
        ``n_classes`` class sizes, each at least 1, which add up to V.

    Raises:
        ConfigError: there are fewer words than classes.
    """
    n_words = len(counts)
    _check_class_count(n_words, n_classes)
    mass = np.cumsum(np.maximum(counts, 1).astype(np.float64) ** power)
    ends = np.searchsorted(mass, mass[-1] * np.arange(1, n_classes) / n_classes, side="left") + 1
    # Give every class a word, even if frequent words have more mass than a whole class.
    steps = np.arange(1, n_classes)
    ends = np.maximum.accumulate(ends - steps) + steps  # strictly rising
    ends = np.minimum(ends, n_words - n_classes + steps)
    bounds = np.concatenate([[0], ends, [n_words]])
    return tuple(int(size) for size in np.diff(bounds))


def make_brown_classes(
    ids: np.ndarray, n_words: int, n_classes: int, *, max_class_size: int | None = None, seed: int = 1
) -> ClassOrder:
    """Make Brown classes (see ``find_brown_clusters``). ``</s>`` is alone in a class.

    Args:
        ids: (T,) word ids by falling count, where id 0 closes every sentence.
        n_words: V, number of words that can be predicted.
        max_class_size: maximum number of words per class, which bounds the time to score a word. None for no
            limit.

    Raises:
        ConfigError: there are fewer words than classes, or the classes cannot hold the words.
    """
    _check_class_count(n_words, n_classes, max_class_size)
    counts = np.bincount(ids, minlength=n_words)
    if n_classes < 3:
        return _separate_sentence_end(np.zeros(n_words - 1, dtype=np.int64), counts, n_classes)
    clusters = find_brown_clusters(ids, n_words, n_classes, max_class_size=max_class_size, seed=seed)
    return ClassOrder.from_classes(clusters, counts)


def make_embedding_classes(
    vectors: np.ndarray, counts: np.ndarray, n_classes: int, *, max_class_size: int | None = None
) -> ClassOrder:
    """Make classes of words whose vectors have similar directions. ``</s>`` is alone in a class.

    Args:
        vectors: (V, D) vectors that are similar for similar words, such as an embedding or the result of
            ``compute_neighbour_vectors``. The output weights of a class-factored network are unsuitable,
            because they distinguish only words of the same class.
        counts: (V,) occurrences of each word.
        max_class_size: as for ``make_brown_classes``.

    Raises:
        ConfigError: there are fewer words than classes, or the classes cannot hold the words.
    """
    _check_class_count(len(counts), n_classes, max_class_size)
    clusters = kmeans(vectors[1:], max(1, n_classes - 1), max_class_size)
    return _separate_sentence_end(clusters, counts, n_classes)


def _separate_sentence_end(clusters: np.ndarray, counts: np.ndarray, n_classes: int) -> ClassOrder:
    """Add a class for ``</s>`` to the clusters of the other words, unless there is only one class."""
    return ClassOrder.from_classes(np.concatenate([[0], clusters + (n_classes > 1)]), counts)


def _check_class_count(n_words: int, n_classes: int, max_class_size: int | None = None) -> None:
    if not 1 <= n_classes <= n_words:
        raise ConfigError(f"{n_classes} classes for {n_words} words; expected between 1 and {n_words}")
    if max_class_size is not None and max_class_size * max(1, n_classes - 1) < n_words - 1:
        raise ConfigError(
            f"{n_classes} classes of at most {max_class_size} words cannot hold {n_words} words; "
            f"give more classes or a larger limit"
        )
