"""Trees of words for a tree softmax: building, checking and saving them."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rescorer.errors import BundleError, ConfigError
from rescorer.lm.checkpoint import WEIGHTS_FILE, load_model, save_model
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.output.tree import MAX_PATH_DECISIONS, TreeSoftmax, balanced_tree, word_paths
from rescorer.vocabulary import END, START, UNKNOWN, Vocabulary
from rescorer_training.classes.brown import compute_neighbour_vectors
from rescorer_training.classes.softmax_trees import build_huffman_tree, build_vector_tree
from tests.support.tiny_models import NETWORK_WORDS


def count_decisions(children: np.ndarray) -> np.ndarray:
    """Count the decisions on the path to each word, by a walk from the root."""
    n_inner = len(children)
    depths = np.zeros(n_inner + 1, dtype=np.int64)
    pending = [(0, 0)]
    while pending:
        node, depth = pending.pop()
        if node < n_inner:
            pending += [(int(child), depth + 1) for child in children[node]]
        else:
            depths[node - n_inner] = depth
    return depths


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_huffman_tree_has_the_smallest_mean_depth(counts):
    tree = build_huffman_tree(np.array(counts))
    starts, _, _ = word_paths(tree, len(counts))
    assert np.diff(starts).tolist() == count_decisions(tree).tolist()
    weights = np.maximum(counts, 0.5)
    heap, cheapest = weights.tolist(), 0.0
    heapq.heapify(heap)
    while len(heap) > 1:  # the sum of all merged masses is the weighted depth
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        cheapest += merged
        heapq.heappush(heap, merged)
    assert (weights * np.diff(starts)).sum() == pytest.approx(cheapest)


@given(st.integers(1, 60), st.integers(0, 9), st.sampled_from(["random", "alike", "two kinds"]))
def test_vector_tree_has_every_word_once(n_words, seed, shape):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n_words, 4)) * (shape != "alike")
    if shape == "two kinds":
        vectors = np.repeat([[1.0, 0, 0, 0], [0, 1, 0, 0]], n_words, axis=0)[:n_words]
    starts, _, _ = word_paths(build_vector_tree(vectors, random.integers(0, 99, n_words)), n_words)
    assert len(starts) == n_words + 1


def test_first_decision_of_a_vector_tree_separates_word_kinds():
    """Two kinds of words never occur in the same context; their vectors come from the text."""
    random = np.random.default_rng(0)
    ids = np.array([i for _ in range(300) for i in (*random.integers(1, 5, 1), *random.integers(5, 9, 1), 0)])
    vectors = compute_neighbour_vectors(ids, np.arange(9))
    np.testing.assert_allclose((vectors**2).sum(axis=1), 2.0, atol=1e-5)
    tree = build_vector_tree(vectors[1:], np.bincount(ids)[1:])
    starts, nodes, sides = word_paths(tree, 8)
    first = sides[starts[:-1]]
    assert (nodes[starts[:-1]] == 0).all()
    assert len(set(first[:4])) == len(set(first[4:])) == 1
    assert first[0] != first[4]


def test_rejects_wrong_number_of_vectors():
    with pytest.raises(ConfigError, match="3 vectors for 4 words"):
        build_vector_tree(np.zeros((3, 2)), np.ones(4))


def make_chain(n_words: int) -> np.ndarray:
    """Make a tree in which each decision separates one word from the rest."""
    nodes = np.arange(n_words - 1)
    return np.stack([np.append(nodes[1:], n_words - 1), 2 * n_words - 2 - nodes], axis=1)


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([[1, 2], [3, 3]], "once from its root"),
        ([[1, 2], [0, 4]], "once from its root"),
        ([[3, 2], [1, 4]], "once from its root"),
        ([[1, 2]], "shape"),
        (make_chain(MAX_PATH_DECISIONS + 2), f"more than {MAX_PATH_DECISIONS}"),
    ],
    ids=["twice", "back to the root", "its own child", "too small", "a chain"],
)
def test_rejects_invalid_trees(children, message):
    layer = TreeSoftmax(4, len(children) + 1 if len(children) > 2 else 3)
    with pytest.raises(BundleError, match=message):
        layer.set_tree(np.array(children))


def make_tree_model() -> tuple[NeuralModel, Vocabulary]:
    torch.manual_seed(0)
    vocabulary = Vocabulary((END, UNKNOWN, *NETWORK_WORDS, START))
    model = NeuralModel(NetworkConfig(len(vocabulary), embedding_size=6, tied=False, output="tree"))
    model.output.set_tree(build_huffman_tree(np.arange(len(vocabulary) - 1) ** 2))
    with torch.no_grad():
        model.output.word_weight.normal_()
    return model.eval(), vocabulary


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 0), (torch.float16, 0.01), (torch.int8, 0.1)]
)
def test_checkpoints_contain_the_tree(tmp_path, dtype, tolerance):
    model, vocabulary = make_tree_model()
    save_model(model, vocabulary, tmp_path, dtype)
    assert load_file(tmp_path / WEIGHTS_FILE)["output.tree"].dtype == torch.int32
    loaded, _ = load_model(tmp_path)
    assert torch.equal(loaded.output.tree, model.output.tree)
    hidden = torch.randn(5, 6)
    expected = model.output.distribution(hidden)
    torch.testing.assert_close(loaded.output.distribution(hidden), expected, atol=tolerance, rtol=0)


def test_rejects_a_checkpoint_with_a_broken_tree(tmp_path):
    save_model(*make_tree_model(), tmp_path)
    tensors = load_file(tmp_path / WEIGHTS_FILE)
    tensors["output.tree"][0, 0] = 0
    save_file(tensors, tmp_path / WEIGHTS_FILE)
    with pytest.raises(BundleError, match="once from its root"):
        load_model(tmp_path)


def test_rejects_a_tree_tied_to_the_embedding():
    with pytest.raises(BundleError, match="tied embeddings cannot be combined with a tree"):
        NeuralModel(NetworkConfig(12, output="tree", tied=True))


def test_only_word_of_a_vocabulary_has_probability_one():
    layer = TreeSoftmax(4, 1)
    hidden, words = torch.randn(3, 4, requires_grad=True), torch.zeros(3, dtype=torch.int64)
    loss = layer.loss(hidden, words)
    loss.backward()
    assert loss == 0
    assert layer.log_probs(hidden, words, words).tolist() == [0, 0, 0]
    assert balanced_tree(1).shape == (0, 2)
