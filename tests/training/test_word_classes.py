"""Word classes: whole and in order, and Brown clusters against exchange by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer_training.classes.brown import brown_clusters, information, mutual_information
from rescorer_training.classes.partition import (
    ClassOrder,
    brown_classes,
    embedding_classes,
    frequency_classes,
    random_classes,
)

texts = st.lists(st.lists(st.integers(1, 7), max_size=6), min_size=1, max_size=15).map(
    lambda lines: np.array([i for line in lines for i in (*line, 0)])
)


def vectors(n_words: int, size: int = 5) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n_words, size))


def every_order(counts: np.ndarray, ids: np.ndarray, n_classes: int) -> dict[str, ClassOrder]:
    return {
        "frequency": frequency_classes(counts, n_classes),
        "equal mass": frequency_classes(counts, n_classes, power=1.0),
        "brown": brown_classes(ids, len(counts), n_classes),
        "k-means": embedding_classes(vectors(len(counts)), counts, n_classes),
        "random": random_classes(counts, n_classes),
    }


@given(texts, st.integers(1, 10))
def test_every_order_has_every_word_once_in_as_many_classes_as_asked_for(ids, n_classes):
    counts = np.bincount(ids, minlength=10)
    for made in every_order(counts, ids, n_classes).values():
        assert sorted(made.order) == list(range(10))
        assert made.order[:2].tolist() == [0, 1]
        assert len(made.class_sizes) == n_classes
        assert sum(made.class_sizes) == 10
        assert min(made.class_sizes) >= 1
        new_classes = made.class_of[made.order]
        assert (np.diff(new_classes) >= 0).all()
        assert n_classes <= made.words_scored(counts) - 1 <= n_classes + 9


@pytest.mark.parametrize("n_classes", [0, 11])
def test_more_classes_than_words_are_refused(n_classes):
    ids = np.array([1, 2, 0])
    counts = np.bincount(ids, minlength=10)
    for make in (
        lambda: frequency_classes(counts, n_classes),
        lambda: brown_classes(ids, 10, n_classes),
        lambda: embedding_classes(vectors(10), counts, n_classes),
        lambda: random_classes(counts, n_classes),
    ):
        with pytest.raises(ConfigError, match="between 1 and 10"):
            make()


@pytest.mark.parametrize("largest", [3, 4, 9])
def test_no_class_is_larger_than_asked_for(largest):
    ids = np.random.default_rng(0).integers(0, 10, 500)
    counts = np.bincount(ids, minlength=10)
    assert max(brown_classes(ids, 10, 4, largest=largest).class_sizes) <= largest
    crowded = np.concatenate([np.ones((9, 3)), -np.ones((1, 3))]) + 0.01 * vectors(10, 3)
    assert max(embedding_classes(crowded, counts, 4, largest=largest).class_sizes) <= largest
    with pytest.raises(ConfigError, match="cannot hold 10 words"):
        brown_classes(ids, 10, 4, largest=2)


def test_a_class_holds_the_words_of_one_kind():
    """Articles, nouns and verbs in a fixed order: the clusters are these kinds, whatever the method."""
    random = np.random.default_rng(0)
    kinds = [[1, 4, 7], [2, 5, 8], [3, 6, 9]]
    ids = np.array([i for _ in range(400) for i in (*(random.choice(kind) for kind in kinds), 0)])
    counts = np.bincount(ids)
    likeness = np.eye(4)[[3, 0, 1, 2, 0, 1, 2, 0, 1, 2]] + 0.05 * vectors(10, 4)
    for made in (brown_classes(ids, 10, 4, seed=0), embedding_classes(likeness, counts, 4)):
        found = {frozenset(np.flatnonzero(made.class_of == c).tolist()) for c in range(4)}
        assert found == {frozenset({0}), *(frozenset(kind) for kind in kinds)}


def by_brute_force(ids: np.ndarray, class_of: np.ndarray, word: int) -> dict[int, float]:
    """The information after moving a word to each class in turn, counted anew."""
    after = {}
    for to in range(1, int(class_of.max()) + 1):
        tried = class_of.copy()
        tried[word] = to
        table = np.zeros((int(class_of.max()) + 1,) * 2)
        for left, right in zip([0, *ids[:-1]], ids, strict=True):
            table[tried[left], tried[right]] += 1
        after[to] = information(table)
    return after


@settings(max_examples=25)
@given(texts, st.integers(3, 5), st.integers(0, 3))
def test_no_single_exchange_improves_brown_clusters(ids, n_classes, seed):
    class_of = brown_clusters(ids, 8, n_classes, sweeps=50, seed=seed)
    assert class_of[0] == 0
    assert (class_of[1:] > 0).all()
    reached = mutual_information(ids, class_of)
    for word in range(1, 8):
        if (class_of == class_of[word]).sum() > 1:
            after = by_brute_force(ids, class_of, word)
            assert after[class_of[word]] == pytest.approx(reached, abs=1e-9)
            assert max(after.values()) <= reached + 2e-4  # a last sweep may gain so little


@settings(max_examples=25)
@given(texts, st.integers(3, 5), st.integers(0, 3))
def test_one_sweep_is_the_greedy_exchange(ids, n_classes, seed):
    start = brown_clusters(ids, 8, n_classes, sweeps=0, seed=seed)
    expected = start.copy()
    for word in range(1, 8):
        if (expected == expected[word]).sum() > 1:
            after = by_brute_force(ids, expected, word)
            best = max(after, key=after.__getitem__)
            if after[best] > after[expected[word]] + 1e-9:
                expected[word] = best
    found = mutual_information(ids, brown_clusters(ids, 8, n_classes, sweeps=1, seed=seed))
    assert found == pytest.approx(mutual_information(ids, expected), abs=1e-9)
