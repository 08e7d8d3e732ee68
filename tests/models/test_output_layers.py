"""Output layers: normalised, consistent between their methods, with the gradients of autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rescorer.models import outputs
from rescorer.models.outputs import ClassFactoredSoftmax, FullSoftmax, MixtureOfSoftmaxes, OutputLayer
from rescorer.models.tree_softmax import TreeSoftmax, balanced_tree

N_WORDS, SIZE = 23, 6
PLACES = np.array([1, 4, 2] + [1] * (N_WORDS - 4) + [3])
"""Number of leaves of each word in a tree where words have several."""
LAYERS = {
    "full": lambda tied: FullSoftmax(SIZE, N_WORDS, tied),
    "classes": lambda tied: ClassFactoredSoftmax(SIZE, (1, 3, 1, 11, 7), tied),
    "one class": lambda tied: ClassFactoredSoftmax(SIZE, (N_WORDS,), tied),
    "one class per word": lambda tied: ClassFactoredSoftmax(SIZE, (1,) * N_WORDS, tied),
    "mixture of softmaxes": lambda tied: MixtureOfSoftmaxes(SIZE, (1, 3, 1, 11, 7), 3, tied),
    "balanced tree": lambda tied: TreeSoftmax(SIZE, N_WORDS, word_vectors=tied),
    "chain": lambda tied: with_tree(TreeSoftmax(SIZE, N_WORDS, word_vectors=tied), chain(N_WORDS)),
    "several places": lambda tied: with_tree(
        TreeSoftmax(SIZE, N_WORDS, int(PLACES.sum()), tied), shuffled_tree(int(PLACES.sum())), PLACES
    ),
}
every_layer = pytest.mark.parametrize(
    ("kind", "tied"),
    [(kind, tied) for kind in LAYERS for tied in (False, True)],
)
words_and_rows = st.lists(st.tuples(st.integers(0, N_WORDS - 1), st.integers(0, 8)), max_size=60)


def chain(n_words: int) -> np.ndarray:
    """A tree in which each decision splits off one word, starting with the last word."""
    nodes = np.arange(n_words - 1)
    return np.stack([np.append(nodes[1:], n_words - 1), 2 * n_words - 2 - nodes], axis=1)


def shuffled_tree(n_leaves: int) -> np.ndarray:
    """A balanced tree whose leaves are in random order, so that the places of a word lie apart."""
    order = np.random.default_rng(1).permutation(n_leaves) + n_leaves - 1
    children = balanced_tree(n_leaves)
    is_leaf = children >= n_leaves - 1
    children[is_leaf] = order
    return children


def with_tree(layer: TreeSoftmax, children: np.ndarray, places: np.ndarray | None = None) -> TreeSoftmax:
    layer.set_tree(children, places)
    return layer


def make(kind: str, tied: bool) -> OutputLayer:
    """Build a float64 layer whose outputs are far from uniform; a tied matrix has a row for ``<s>`` too."""
    torch.manual_seed(3)
    layer = LAYERS[kind](nn.Parameter(torch.randn(N_WORDS + 1, SIZE)) if tied else None)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    return layer.double()


@every_layer
def test_probabilities_sum_to_one(kind, tied):
    total = make(kind, tied).float().distribution(torch.randn(7, SIZE)).exp().sum(dim=1)
    torch.testing.assert_close(total, torch.ones(7), atol=1e-5, rtol=0)


@every_layer
@given(words_and_rows, st.sampled_from([2, 1 << 20]), st.sampled_from([1, 192]))
def test_log_probs_equal_the_distribution(kind, tied, edges, block_scores, padded_from):
    layer = make(kind, tied)
    hidden = torch.randn(9, SIZE, dtype=torch.float64)
    words, rows = (
        torch.tensor(column, dtype=torch.int64) for column in zip(*(edges or [(0, 0)]), strict=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "MIN_BLOCK_ROWS", 1)
        patch.setitem(outputs.BLOCK_SCORES, "cpu", block_scores)
        patch.setattr(outputs, "MAX_STEP_SCORES", block_scores)
        patch.setattr(outputs, "MIN_SLICE_ROWS", padded_from)
        found = layer.log_probs(hidden, rows, words)
    torch.testing.assert_close(found, layer.distribution(hidden)[rows, words])


@every_layer
@given(st.lists(st.integers(0, N_WORDS - 1), min_size=1, max_size=40), st.sampled_from([60, 1 << 20]))
def test_loss_and_gradients_equal_autograd(kind, tied, words, block_scores):
    layer = make(kind, tied)
    target = torch.tensor(words)
    hidden = torch.randn(len(words), SIZE, dtype=torch.float64, requires_grad=True)
    inputs = [hidden, *layer.parameters()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "MIN_BLOCK_ROWS", 1)
        patch.setitem(outputs.BLOCK_SCORES, "cpu", block_scores)
        loss = layer.loss(hidden, target)
        found = torch.autograd.grad(loss * 0.25, inputs)
    with torch.enable_grad():
        distribution = type(layer).distribution.__wrapped__(layer, hidden)
        expected_loss = -distribution[torch.arange(len(words)), target].sum()
    expected = torch.autograd.grad(expected_loss * 0.25, inputs, materialize_grads=True)
    torch.testing.assert_close(loss, expected_loss)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@every_layer
def test_loss_is_the_same_without_gradient(kind, tied):
    layer, hidden = make(kind, tied), torch.randn(5, SIZE, dtype=torch.float64)
    words = torch.randint(0, N_WORDS, (5,))
    with torch.no_grad():
        without_gradient = layer.loss(hidden, words)
    torch.testing.assert_close(without_gradient, layer.loss(hidden, words).detach())


@every_layer
def test_starts_from_unigram_distribution(kind, tied):
    layer = make(kind, tied)
    counts = torch.arange(N_WORDS, 0, -1)
    layer.start_from_unigrams(counts)
    found = layer.distribution(torch.zeros(1, SIZE, dtype=torch.float64)).exp()[0]
    torch.testing.assert_close(found, counts.double() / counts.sum(), atol=1e-6, rtol=0)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 40), st.integers(0, 99))
def test_gradients_for_any_class_sizes_equal_autograd(sizes, n_rows, seed):
    """With several padded tables, classes that do not occur, and a tied row that is never predicted."""
    torch.manual_seed(seed)
    layer = ClassFactoredSoftmax(SIZE, sizes, nn.Parameter(torch.randn(sum(sizes) + 1, SIZE))).double()
    hidden = torch.randn(n_rows, SIZE, dtype=torch.float64, requires_grad=True)
    words = torch.randint(0, sum(sizes), (n_rows,))
    inputs = [hidden, *layer.parameters()]
    found = torch.autograd.grad(layer.loss(hidden, words), inputs)
    with torch.enable_grad():
        distribution = ClassFactoredSoftmax.distribution.__wrapped__(layer, hidden)
    expected_loss = -distribution[torch.arange(n_rows), words].sum()
    expected = torch.autograd.grad(expected_loss, inputs, materialize_grads=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(1, 60),
    st.sampled_from([1, 3, 64]),
    st.sampled_from([1, 1 << 27]),
    st.integers(0, 99),
)
def test_batched_products_equal_one_product_per_class(sizes, n_edges, chunk_rows, max_weights, seed):
    """Run the GPU's algorithm on the CPU."""
    torch.manual_seed(seed)
    layer = ClassFactoredSoftmax(SIZE, sizes, nn.Parameter(torch.randn(sum(sizes) + 1, SIZE))).double()
    hidden, rows = torch.randn(5, SIZE, dtype=torch.float64), torch.randint(0, 5, (n_edges,))
    words = torch.randint(0, sum(sizes), (n_edges,))
    classes = layer.class_of[words]
    targets, positions = words - layer.first_word[classes], layer.position[classes]
    weights = layer.word_weight.detach(), layer.word_bias.detach()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "CHUNK_ROWS", chunk_rows)
        patch.setattr(outputs, "MAX_COPIED_WEIGHTS", max_weights)
        chunks = outputs.build_chunks(hidden, rows, positions, len(sizes))
        found = outputs.within_class_log_probs(chunks, targets, layer.layout, layer.ranges, *weights)
    torch.testing.assert_close(found, layer._within_class_log_probs(hidden, rows, words, classes))
