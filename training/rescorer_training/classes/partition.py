"""Owns the assignment of words to output classes and the vocabulary order that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.vocabulary import END, START, UNKNOWN, Vocabulary
from rescorer_training.classes.brown import brown_clusters
from rescorer_training.classes.kmeans import kmeans


@dataclass(frozen=True, slots=True)
class ClassOrder:
    """Words in the order of their classes, so that every class is a range of ids.

    ``</s>`` and ``<unk>`` keep their ids, 0 and 1; within a class, frequent words come first.
    """

    order: np.ndarray
    """(V,) the old id at each new place."""
    class_sizes: tuple[int, ...]

    @classmethod
    def of(cls, class_of: np.ndarray, counts: np.ndarray) -> ClassOrder:
        """The order that an assignment asks for: the marks' classes first, then the more frequent ones.

        Args:
            class_of: (V,) class of each word, 0 … C-1, none empty; ``</s>`` alone or with ``<unk>``.
            counts: (V,) by which classes are ordered.
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

    def words_scored(self, counts: np.ndarray) -> float:
        """Classes, and words of the class, that are scored for a word of the text on average."""
        sizes = np.asarray(self.class_sizes)[self.class_of]
        return len(self.class_sizes) + float((sizes * counts).sum() / counts.sum())


def ordered_vocabulary(counts: Mapping[str, int], words: Iterable[str]) -> Vocabulary:
    """``</s>``, ``<unk>``, then ``words`` by falling count, so that frequency classes are ranges of ids."""
    listed = set(words) - {START, END, UNKNOWN}
    return Vocabulary((END, UNKNOWN, *sorted(listed, key=lambda word: (-counts.get(word, 0), word)), START))


def default_n_classes(n_words: int) -> int:
    """√V, which balances the two softmaxes."""
    return max(1, math.isqrt(n_words))


def frequency_bins(counts: np.ndarray, n_classes: int, power: float = 0.5) -> tuple[int, ...]:
    """Sizes of ``n_classes`` classes of about equal Σ count^power over words ordered by falling count.

    power 1 is Mikolov et al. (2011)'s equal mass, which leaves one vast class of rare words; 0.5, the
    ``-new`` binning of his toolkit, bounds the classes far better and is the default.

    Args:
        counts: (V,) in the vocabulary's order.

    Returns:
        ``n_classes`` sizes of at least one word, summing to V.

    Raises:
        ConfigError: there are fewer words than classes.
    """
    n_words = len(counts)
    _check(n_words, n_classes)
    mass = np.cumsum(np.maximum(counts, 1).astype(np.float64) ** power)
    ends = np.searchsorted(mass, mass[-1] * np.arange(1, n_classes) / n_classes, side="left") + 1
    # Every class keeps a word: frequent words may be worth more than a whole class each.
    steps = np.arange(1, n_classes)
    ends = np.maximum.accumulate(ends - steps) + steps  # strictly rising
    ends = np.minimum(ends, n_words - n_classes + steps)
    bounds = np.concatenate([[0], ends, [n_words]])
    return tuple(int(size) for size in np.diff(bounds))


def frequency_classes(counts: np.ndarray, n_classes: int, power: float = 0.5) -> ClassOrder:
    """The classes of ``frequency_bins``; the order is the vocabulary's own."""
    return ClassOrder(np.arange(len(counts)), frequency_bins(counts, n_classes, power))


def brown_classes(
    ids: np.ndarray, n_words: int, n_classes: int, *, largest: int | None = None, seed: int = 1
) -> ClassOrder:
    """Classes that tell most about their neighbours; ``</s>`` has its own. See ``brown_clusters``.

    Args:
        ids: (T,) text, words by falling count, sentences closed by id 0.
        n_words: V, words that can be predicted.
        largest: words that a class may have, which bounds the time a word takes; None: any number.

    Raises:
        ConfigError: there are fewer words than classes, or the classes cannot hold the words.
    """
    _check(n_words, n_classes, largest)
    counts = np.bincount(ids, minlength=n_words)
    if n_classes < 3:
        return _marks_apart(np.zeros(n_words - 1, dtype=np.int64), counts, n_classes)
    return ClassOrder.of(brown_clusters(ids, n_words, n_classes, largest=largest, seed=seed), counts)


def embedding_classes(
    vectors: np.ndarray, counts: np.ndarray, n_classes: int, *, largest: int | None = None, seed: int = 1
) -> ClassOrder:
    """Classes of words whose vectors point the same way; ``</s>`` has its own.

    Args:
        vectors: (V, D) that are alike for like words: an embedding, or ``neighbour_vectors``. The output
            weights of a class-factored network are not: they only tell words of one class apart.
        counts: (V,) of the words.
        largest, Raises: as ``brown_classes``.
    """
    _check(len(counts), n_classes, largest)
    clusters = kmeans(vectors[1:], max(1, n_classes - 1), largest=largest, seed=seed)
    return _marks_apart(clusters, counts, n_classes)


def random_classes(counts: np.ndarray, n_classes: int, *, seed: int = 1) -> ClassOrder:
    """Classes of equal size that mean nothing: what others are measured against."""
    _check(len(counts), n_classes)
    dealt = np.random.default_rng(seed).permutation(len(counts) - 1) % max(1, n_classes - 1)
    return _marks_apart(dealt, counts, n_classes)


def _marks_apart(clusters: np.ndarray, counts: np.ndarray, n_classes: int) -> ClassOrder:
    """Classes of the words but ``</s>``, which gets one of its own unless there is only one at all."""
    return ClassOrder.of(np.concatenate([[0], clusters + (n_classes > 1)]), counts)


def _check(n_words: int, n_classes: int, largest: int | None = None) -> None:
    if not 1 <= n_classes <= n_words:
        raise ConfigError(f"{n_classes} classes for {n_words} words; expected between 1 and {n_words}")
    if largest is not None and largest * max(1, n_classes - 1) < n_words - 1:
        raise ConfigError(
            f"{n_classes} classes of at most {largest} words cannot hold {n_words} words; "
            f"give more classes or a larger limit"
        )
