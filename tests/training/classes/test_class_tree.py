"""The tree of Brown clusters, compared with unions that are carried out and measured one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rescorer_training.classes.brown import (
    compute_union_changes,
    find_brown_clusters,
    find_class_paths,
    find_nested_classes,
    mutual_information,
)

tables = st.integers(2, 7).flatmap(
    lambda n: arrays.arrays(np.float64, (n, n), elements=st.integers(0, 9).map(float))
)


def unite(joint: np.ndarray, a: int, b: int) -> np.ndarray:
    groups = np.array([a if class_ == b else class_ for class_ in range(len(joint))])
    united = np.zeros_like(joint)
    np.add.at(united, (groups[:, None], groups[None]), joint)
    return united


@given(tables.filter(lambda joint: joint.sum() > 0))
def test_changes_are_those_of_mutual_information(joint):
    changes = compute_union_changes(joint)
    for a in range(len(joint)):
        for b in set(range(len(joint))) - {a}:
            expected = mutual_information(unite(joint, a, b)) - mutual_information(joint)
            assert changes[a, b] / joint.sum() == pytest.approx(expected, abs=1e-9)
            assert changes[a, b] <= 1e-9


@given(tables)
def test_paths_are_those_of_a_binary_tree(joint):
    paths = find_class_paths(joint)
    assert sum(0.5 ** len(path) for path in paths) == 1  # Kraft's equality: a full tree
    for path in paths:
        assert not any(other.startswith(path) for other in paths if other is not path)


def test_unites_classes_with_like_neighbours_first():
    blocks = np.kron(np.array([[0, 9], [9, 0]]), np.array([[4, 5], [5, 4]])).astype(float)
    paths = find_class_paths(blocks)
    assert {paths[0][0], paths[1][0]} != {paths[2][0], paths[3][0]}
    assert [len(path) for path in paths] == [2, 2, 2, 2]


def test_nested_classes_of_words():
    ids = np.random.default_rng(0).integers(0, 12, 3000)
    ids[::7] = 0
    classes = find_nested_classes(ids, 12, 6, [1, 2, 32])
    assert classes.shape == (12, 3)
    assert set(classes.ravel()) == set(range(classes.max() + 1))
    for coarse, fine in ((0, 1), (1, 2)):  # every fine class lies within one coarse class
        assert len(set(map(tuple, classes[:, [coarse, fine]]))) == len(set(classes[:, fine]))
    clusters = find_brown_clusters(ids, 12, 6)
    assert len(set(zip(clusters, classes[:, 2], strict=True))) == len(set(clusters))
