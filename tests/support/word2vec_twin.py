"""CBOW and skip-gram as the original program computes them: one pair after another, in NumPy."""

from __future__ import annotations

import numpy as np

from rescorer.models.tree_softmax import leaf_paths
from rescorer_training.classes.trees import build_huffman_tree

Target = tuple[int, float, float]
"""Row of the output vectors, label (1 for the word, 0 for noise), and how often the target counts."""


def noise_targets(centre: int, noise: np.ndarray, weight: float) -> list[Target]:
    """The centre word and its noise words, except those that equal it."""
    return [(centre, 1.0, 1.0)] + [(int(word), 0.0, weight) for word in noise if word != centre]


def path_targets(centre: int, counts: np.ndarray) -> list[Target]:
    """The nodes on the path of the centre word; the label is 1 where it turns to the first child."""
    starts, nodes, sides = leaf_paths(build_huffman_tree(counts), len(counts))
    path = slice(starts[centre], starts[centre + 1])
    return [(int(node), 1.0 - float(side), 1.0) for node, side in zip(nodes[path], sides[path], strict=True)]


def predict(query: np.ndarray, outputs: np.ndarray, targets: list[Target], rate: float) -> np.ndarray:
    """Train the outputs with one query, one target after another; return the step of the query."""
    step = np.zeros_like(query)
    for row, label, weight in targets:
        error = rate * weight * (label - 1 / (1 + np.exp(-query @ outputs[row])))
        step += error * outputs[row]
        outputs[row] += error * query
    return step


def train_skip_gram(
    inputs: np.ndarray, outputs: np.ndarray, context: list[int], targets: list[Target], rate: float
) -> None:
    """Train with all pairs of a context word and the centre word, whose targets are given."""
    for word in context:
        inputs[word] += predict(inputs[word], outputs, targets, rate)


def train_cbow(
    inputs: np.ndarray, outputs: np.ndarray, context: list[int], targets: list[Target], rate: float
) -> None:
    """Train with the mean of the context."""
    if context:
        step = predict(inputs[context].mean(axis=0), outputs, targets, rate)
        for word in context:
            inputs[word] += step
