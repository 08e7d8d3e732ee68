"""Find Brown clusters, and join them to a binary tree of classes.

Brown clusters are word classes that maximise the average mutual information of neighbouring classes (Brown et
al. 1992). They are found by the exchange algorithm (Martin, Liermann & Ney 1998): each word in turn is taken
out of its class and put into the class where the objective is largest, until a sweep over the words gains
little. For each word, a sweep computes a table with a row for each of C classes that the word could join,
and a column for each class that occurs next to the word.

The tree is built from the leaves: the two classes whose union costs least mutual information are joined,
until one class is left. A prefix of the path from the root to a cluster then names a class. Short prefixes
name coarse classes, long prefixes fine ones (Miller, Guinness & Zamanian 2004).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.progress import track

CLASS_NEIGHBOUR_WEIGHT = 100.0
"""The neighbours of a word's whole class count in the word's vector like so many neighbours of its own.

On Penn Treebank, trees built from such vectors have 1 to 2 % lower perplexity than with a weight of 1.
"""
MAX_SWEEPS = 20
"""Maximum number of passes over the words."""
MIN_RELATIVE_GAIN = 1e-4
"""Stop after a sweep whose relative gain in mutual information is smaller than this."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The left or the right neighbours of every word, with their counts, in flat arrays for all words."""

    starts: np.ndarray
    """(V + 1,) index of each word's first neighbour."""
    words: np.ndarray
    """(B,) distinct neighbours."""
    counts: np.ndarray
    """(B,) float64 occurrences."""

    @classmethod
    def from_pairs(
        cls, words: np.ndarray, neighbours: np.ndarray, counts: np.ndarray, n_words: int
    ) -> Neighbours:
        """Sort pairs of a word and a neighbour by the word."""
        order = np.argsort(words, kind="stable")
        starts = np.searchsorted(words[order], np.arange(n_words + 1))
        return cls(starts, neighbours[order], counts[order])

    def count_classes(self, word: int, class_of: np.ndarray, n_classes: int) -> np.ndarray:
        """Count how often words of each class are neighbours of a word, (C,) float64."""
        row = slice(self.starts[word], self.starts[word + 1])
        return np.bincount(class_of[self.words[row]], self.counts[row], n_classes)


def count_bigrams(ids: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the distinct bigrams of a text, with a sentence end (word 0) before its first word.

    Returns:
        (B,) left words, (B,) right words and (B,) float64 counts.
    """
    keys = np.concatenate([[0], ids[:-1]]).astype(np.int64) * n_words + ids
    distinct, counts = np.unique(keys, return_counts=True)
    left, right = np.divmod(distinct, n_words)
    return left, right, counts.astype(np.float64)


def mutual_information(joint: np.ndarray) -> float:
    """Mutual information in nats of the rows and the columns of a table of joint counts."""
    terms = x_ln_x(joint).sum() - x_ln_x(joint.sum(0)).sum() - x_ln_x(joint.sum(1)).sum()
    return float(terms / joint.sum() + np.log(joint.sum()))


def find_brown_clusters(
    ids: np.ndarray,
    n_words: int,
    n_classes: int,
    *,
    sweeps: int = MAX_SWEEPS,
    max_class_size: int | None = None,
    seed: int = 1,
) -> np.ndarray:
    """Assign the words 1 … V-1 to the classes 1 … C-1; word 0 (``</s>``) is always alone in class 0.

    Args:
        ids: (T,) word ids by falling count, where id 0 closes every sentence.
        n_words: V, number of words.
        n_classes: C ≥ 2.
        sweeps: maximum number of passes over the words.
        max_class_size: maximum number of words per class; None for no limit. C - 1 classes of this size
            must be able to hold all words except ``</s>``.
        seed: random seed of the initial assignment.

    Returns:
        (V,) class of each word. Words that never occur stay in their initial class.
    """
    return _cluster(ids, n_words, n_classes, sweeps, max_class_size, seed).class_of


def _cluster(
    ids: np.ndarray, n_words: int, n_classes: int, sweeps: int, max_class_size: int | None, seed: int
) -> _Exchange:
    """Run the exchange algorithm; arguments as for ``find_brown_clusters``."""
    dealt = np.random.default_rng(seed).permutation(n_words - 1) % (n_classes - 1)
    exchange = _Exchange(ids, np.concatenate([[0], 1 + dealt]), max_class_size or n_words)
    reached = mutual_information(exchange.joint)
    with track("clustering words", "sweeps", sweeps) as task:
        for _ in range(sweeps):
            exchange.sweep()
            before, reached = reached, mutual_information(exchange.joint)
            task.set_note(f"{reached:.4f} nats")
            task.advance()
            if reached - before < MIN_RELATIVE_GAIN * reached:
                break
    return exchange


def compute_neighbour_vectors(ids: np.ndarray, class_of: np.ndarray) -> np.ndarray:
    """Compute a vector for each word from the classes of its neighbours, without training a network.

    The values are square roots of relative frequencies, so that distances are Hellinger distances. The
    neighbours of a word are smoothed with those of its class, because rare words have too few neighbours.

    Args:
        ids: (T,) word ids, sentences closed by id 0.
        class_of: (V,) class of each word, for example from ``find_brown_clusters``.

    Returns:
        (V, 2·C) float32.
    """
    n_words, n_classes = len(class_of), int(class_of.max()) + 1
    left, right, counts = count_bigrams(ids, n_words)
    sides = []
    for words, neighbours in ((left, right), (right, left)):
        table = np.zeros((n_words, n_classes))
        np.add.at(table, (words, class_of[neighbours]), counts)
        of_class = np.zeros((n_classes, n_classes))
        np.add.at(of_class, class_of, table)
        of_class /= np.maximum(of_class.sum(axis=1, keepdims=True), 1.0)
        table += CLASS_NEIGHBOUR_WEIGHT * of_class[class_of]
        sides.append(np.sqrt(table / np.maximum(table.sum(axis=1, keepdims=True), 1.0)))
    return np.concatenate(sides, axis=1).astype(np.float32)


class _Exchange:
    """State of the exchange algorithm: the current classes and the table of bigram counts between them.

    Args:
        ids: (T,) word ids by falling count, sentences closed by id 0.
        class_of: (V,) initial class of each word; changed in place.
        max_class_size: maximum number of words per class.
    """

    def __init__(self, ids: np.ndarray, class_of: np.ndarray, max_class_size: int) -> None:
        n_words, n_classes = len(class_of), int(class_of.max()) + 1
        left, right, counts = count_bigrams(ids, n_words)
        self.class_of, self.n_classes, self.max_class_size = class_of, n_classes, max_class_size
        self.counts = np.bincount(ids, minlength=n_words).astype(np.float64)
        self.sizes = np.bincount(class_of, minlength=n_classes)
        self.after = Neighbours.from_pairs(left, right, counts, n_words)
        self.before = Neighbours.from_pairs(right, left, counts, n_words)
        same = left == right
        self.repeats = np.zeros(n_words)  # how often each word follows itself
        self.repeats[left[same]] = counts[same]
        self.joint = np.zeros((n_classes, n_classes))
        np.add.at(self.joint, (self.class_of[left], self.class_of[right]), counts)
        self.x_ln_x = x_ln_x(self.joint)
        self.mass = np.bincount(self.class_of, self.counts, n_classes)

    def sweep(self) -> None:
        """Move every word except ``</s>`` to its best class, frequent words first."""
        for word in range(1, len(self.class_of)):
            current = self.class_of[word]
            if self.counts[word] and self.sizes[current] > 1:
                after = self.after.count_classes(word, self.class_of, self.n_classes)
                before = self.before.count_classes(word, self.class_of, self.n_classes)
                after[current] -= self.repeats[word]
                before[current] -= self.repeats[word]
                self._update(word, current, after, before, -1)
                best = self._find_best_class(word, current, after, before)
                self._update(word, best, after, before, 1)

    def _update(self, word: int, target: int, after: np.ndarray, before: np.ndarray, sign: int) -> None:
        """Add a word to a class (``sign`` 1), or remove the word from the class (``sign`` -1)."""
        self.joint[target] += sign * after
        self.joint[:, target] += sign * before
        self.joint[target, target] += sign * self.repeats[word]
        self.x_ln_x[target] = x_ln_x(self.joint[target])
        self.x_ln_x[:, target] = x_ln_x(self.joint[:, target])
        self.mass[target] += sign * self.counts[word]
        self.sizes[target] += sign
        self.class_of[word] = target

    def _find_best_class(self, word: int, current: int, after: np.ndarray, before: np.ndarray) -> int:
        """Find the class to which a word adds most mutual information, among the classes that are not full.

        The word must have been removed from its class, ``current``. That class is returned unless another one
        is better.
        """
        seen = np.flatnonzero(after)
        gain = (x_ln_x(self.joint[:, seen] + after[seen]) - self.x_ln_x[:, seen]).sum(axis=1)
        seen = np.flatnonzero(before)
        gain += (x_ln_x(self.joint[seen] + before[seen, None]) - self.x_ln_x[seen]).sum(axis=0)
        # each sum changes the diagonal entry as if the other did not: replace both by the joint change
        diagonal, diagonal_x_ln_x = self.joint.diagonal(), self.x_ln_x.diagonal()
        gain += x_ln_x(diagonal + after + before + self.repeats[word]) + diagonal_x_ln_x
        gain -= x_ln_x(diagonal + after) + x_ln_x(diagonal + before)
        gain -= 2 * (x_ln_x(self.mass + self.counts[word]) - x_ln_x(self.mass))
        current_gain = gain[current]
        gain[0] = -np.inf
        gain[self.sizes >= self.max_class_size] = -np.inf
        best = int(np.argmax(gain))
        return best if gain[best] > current_gain + 1e-9 * abs(current_gain) else current


def x_ln_x(counts: np.ndarray) -> np.ndarray:
    """Compute x·ln x of integers, which is 0 for 0."""
    return counts * np.log(np.maximum(counts, 1.0))


def find_class_paths(joint: np.ndarray) -> list[str]:
    """Join classes to a tree; return the path from the root to each class, such as ``0110``.

    Args:
        joint: (C, C) float64, how often each class (row) occurs just before each class (column).
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
    """Compute by how much N·I, text length times mutual information, changes if two classes are united.

    Returns:
        (C, C) float64, at most 0, for each pair of classes; the diagonal is meaningless.
    """
    terms, diagonal = x_ln_x(joint), joint.diagonal()
    changes = np.empty_like(joint)
    for a, (row, column) in enumerate(zip(joint, joint.T, strict=True)):
        # all counts of the united class and each other class; those of a and b themselves are one count
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
        ids: (T,) word ids by falling count, where id 0 closes every sentence.
        n_words: V, number of words.
        n_classes: C ≥ 2, number of clusters that are joined to a tree.
        depths: for each depth, the length of the prefixes that name its classes. A path that is shorter
            counts as a whole.

    Returns:
        (V, len(depths)) int64; the classes of all depths are numbered in one sequence, from 0.
    """
    clusters = _cluster(ids, n_words, n_classes, MAX_SWEEPS, None, seed=1)
    paths = find_class_paths(clusters.joint)
    columns, n_numbered = [], 0
    for depth in depths:
        names, numbers = np.unique([path[:depth] for path in paths], return_inverse=True)
        columns.append(n_numbered + numbers[clusters.class_of])
        n_numbered += len(names)
    return np.stack(columns, axis=1)
