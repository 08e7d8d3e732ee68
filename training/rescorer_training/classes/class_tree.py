"""Join Brown clusters to a binary tree, whose paths give each word coarse and fine classes.

As in Brown et al. (1992), the two classes whose union costs least mutual information are joined, until one is
left. A prefix of the path from the root names a class: short prefixes are coarse, long ones fine (Miller,
Guinness & Zamanian 2004).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer_training.classes.brown import count_bigrams, find_brown_clusters, x_ln_x


def find_class_paths(joint: np.ndarray) -> list[str]:
    """Join classes to a tree and return the path from the root to each, a string of 0 and 1.

    Args:
        joint: (C, C) float64 counts of each class before each other one.
    """
    members = [[class_] for class_ in range(len(joint))]
    paths = [""] * len(joint)
    while len(members) > 1:
        changes = compute_union_changes(joint)
        np.fill_diagonal(changes, -np.inf)
        first, second = sorted(divmod(int(changes.argmax()), len(joint)))
        for bit, position in enumerate((first, second)):
            for class_ in members[position]:
                paths[class_] = f"{bit}{paths[class_]}"
        joint = _unite(joint, first, second)
        members[first] += members.pop(second)
    return paths


def compute_union_changes(joint: np.ndarray) -> np.ndarray:
    """Compute the change of N·I, text length times mutual information, for each pair of classes united.

    Returns:
        (C, C) float64, at most 0; the diagonal is meaningless.
    """
    terms, diagonal = x_ln_x(joint), joint.diagonal()
    changes = np.empty_like(joint)
    for a, (row, column) in enumerate(zip(joint, joint.T, strict=True)):
        # All counts of the united class and each other one; those of a and b themselves are one count.
        after = x_ln_x(row + joint).sum(axis=1) - x_ln_x(row[a] + column) - x_ln_x(row + diagonal)
        before = x_ln_x(column + joint.T).sum(axis=1) - x_ln_x(row[a] + row) - x_ln_x(column + diagonal)
        changes[a] = after + before + x_ln_x(row[a] + row + column + diagonal)
    own = terms.sum(axis=0) + terms.sum(axis=1) - terms.diagonal()
    changes -= own[:, None] + own - terms - terms.T
    for mass in (joint.sum(axis=0), joint.sum(axis=1)):
        changes -= x_ln_x(mass[:, None] + mass) - x_ln_x(mass)[:, None] - x_ln_x(mass)
    return changes


def _unite(joint: np.ndarray, first: int, second: int) -> np.ndarray:
    """Add the counts of the second class to those of the first, and remove the second."""
    united = joint.copy()
    united[first] += united[second]
    united[:, first] += united[:, second]
    return np.delete(np.delete(united, second, axis=0), second, axis=1)


def find_nested_classes(ids: np.ndarray, n_words: int, n_classes: int, depths: Sequence[int]) -> np.ndarray:
    """Find the classes of each word at several depths of the tree of Brown clusters.

    Args:
        ids: (T,) word ids by falling count, sentences closed by id 0.
        n_words: V, number of words.
        n_classes: C ≥ 2, number of clusters that are joined to a tree.
        depths: lengths of the prefixes of paths; a shorter path is a prefix of itself.

    Returns:
        (V, len(depths)) int64; the classes of all depths are numbered in one sequence, from 0.
    """
    class_of = find_brown_clusters(ids, n_words, n_classes)
    left, right, counts = count_bigrams(ids, n_words)
    pairs = class_of[left] * n_classes + class_of[right]
    joint = np.bincount(pairs, counts, n_classes**2).reshape(n_classes, n_classes)
    paths = find_class_paths(joint)
    columns, n_numbered = [], 0
    for depth in depths:
        names, numbers = np.unique([path[:depth] for path in paths], return_inverse=True)
        columns.append(n_numbered + numbers[class_of])
        n_numbered += len(names)
    return np.stack(columns, axis=1)
