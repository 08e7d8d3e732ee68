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
from rescorer.models.network_files import END, START, UNKNOWN, WEIGHTS_FILE, NetworkConfig, Vocabulary
from rescorer.models.neural import NeuralModel, load_model, save_model
from rescorer.models.tree_softmax import MAX_PATH_DECISIONS, TreeSoftmax, balanced_tree, leaf_paths
from rescorer_training.classes.brown import compute_neighbour_vectors
from rescorer_training.classes.trees import MOST_PLACES, build_huffman_tree, build_vector_tree
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
    starts, _, _ = leaf_paths(tree, len(counts))
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
    tree, places = build_vector_tree(vectors, random.integers(0, 99, n_words))
    starts, _, _ = leaf_paths(tree, n_words)
    assert places.tolist() == [1] * n_words
    assert len(starts) == n_words + 1


def test_first_decision_of_a_vector_tree_separates_word_kinds():
    """Two kinds of words never occur in the same context; their vectors come from the text."""
    random = np.random.default_rng(0)
    ids = np.array([i for _ in range(300) for i in (*random.integers(1, 5, 1), *random.integers(5, 9, 1), 0)])
    vectors = compute_neighbour_vectors(ids, np.arange(9))
    np.testing.assert_allclose((vectors**2).sum(axis=1), 2.0, atol=1e-5)
    tree, _ = build_vector_tree(vectors[1:], np.bincount(ids)[1:])
    starts, nodes, sides = leaf_paths(tree, 8)
    first = sides[starts[:-1]]
    assert (nodes[starts[:-1]] == 0).all()
    assert len(set(first[:4])) == len(set(first[4:])) == 1
    assert first[0] != first[4]


def test_words_between_two_kinds_get_several_places():
    """Words halfway between two clusters go to both sides of the first decision, the others to one."""
    random = np.random.default_rng(0)
    centres = np.repeat([[-3.0, 0.0], [3.0, 0.0], [0.0, 0.0]], [40, 40, 4], axis=0)
    vectors = centres + random.normal(size=(84, 2)) * 0.5 * (centres != 0).any(axis=1, keepdims=True)
    counts = np.repeat([100, 1], [80, 4])  # the rare words do not move the means
    tree, places = build_vector_tree(vectors, counts, overlap=0.45)
    starts, _, sides = leaf_paths(tree, int(places.sum()))
    firsts = np.split(
        sides[starts[:-1]], np.cumsum(places)[:-1]
    )  # of each word, the first child of its paths
    assert [len(set(sides)) for sides in firsts] == [1] * 80 + [2] * 4
    assert places.max() <= MOST_PLACES


@given(st.integers(1, 60), st.integers(0, 9), st.sampled_from([0.0, 0.2, 0.5]))
def test_a_tree_with_overlap_fits_a_layer(n_words, seed, overlap):
    random = np.random.default_rng(seed)
    tree, places = build_vector_tree(
        random.normal(size=(n_words, 4)), random.integers(0, 9, n_words), overlap
    )
    layer = TreeSoftmax(4, n_words, int(places.sum()))
    layer.set_tree(tree, places)
    assert len(places) == n_words
    if not overlap:
        assert (places == 1).all()


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


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([1, 1, 1], "have 3 places in the tree; expected its 4 leaves"),
        ([2, 2, 0], "word 2 has 0 places in the tree; expected 1 to 64"),
        ([3, -1, 2], "word 1 has -1 places"),
        ([1, 1, 65], "word 2 has 65 places"),
        ([1, 3], "places have the shape"),
    ],
)
def test_rejects_invalid_places(places, message):
    with pytest.raises(BundleError, match=message):
        TreeSoftmax(4, 3, n_leaves=4).set_tree(balanced_tree(4), np.array(places))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"leaves": 10}, "leaves is 10 for the output tree; expected 0, or 11 to 704"),
        ({"leaves": 705}, "leaves is 705 for the output tree"),
        ({"leaves": -1}, "leaves is -1 for the output tree"),
        ({"leaves": 2.0}, "leaves is 2.0; expected an integer"),
        ({"leaves": 12, "output": "full"}, "leaves is 12 for the output full; expected 0"),
    ],
)
def test_rejects_a_wrong_number_of_leaves(settings, message):
    with pytest.raises(BundleError, match=message):
        NetworkConfig(12, **{"output": "tree", **settings})


def make_tree_model(tied: bool = False, leaves: int = 0) -> tuple[NeuralModel, Vocabulary]:
    torch.manual_seed(0)
    vocabulary = Vocabulary((END, UNKNOWN, *NETWORK_WORDS, START))
    n_words = len(vocabulary) - 1
    config = NetworkConfig(len(vocabulary), embedding_size=6, tied=tied, output="tree", leaves=leaves)
    model = NeuralModel(config)
    n_leaves = leaves or n_words
    places = np.bincount(np.arange(n_leaves) % n_words)
    model.output.set_tree(build_huffman_tree(np.arange(n_leaves) ** 2), places)
    with torch.no_grad():
        model.output.word_weight.normal_()
    return model.eval(), vocabulary


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 0), (torch.float16, 0.01), (torch.int8, 0.1)]
)
@pytest.mark.parametrize(("tied", "leaves"), [(False, 0), (True, 0), (True, 30)])
def test_checkpoints_contain_the_tree(tmp_path, tied, leaves, dtype, tolerance):
    model, vocabulary = make_tree_model(tied, leaves)
    save_model(model, vocabulary, tmp_path, dtype)
    stored = load_file(tmp_path / WEIGHTS_FILE)
    assert stored["output.tree"].dtype == torch.int32
    assert "output.word_vectors" not in stored
    assert ("output.places" in stored) == (leaves > 0)
    loaded, _ = load_model(tmp_path)
    assert torch.equal(loaded.output.tree, model.output.tree)
    assert torch.equal(loaded.output.places, model.output.places)
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


def test_rejects_a_checkpoint_with_broken_places(tmp_path):
    save_model(*make_tree_model(leaves=30), tmp_path)
    tensors = load_file(tmp_path / WEIGHTS_FILE)
    tensors["output.places"][0] += 1
    save_file(tensors, tmp_path / WEIGHTS_FILE)
    with pytest.raises(BundleError, match="31 places in the tree; expected its 30 leaves"):
        load_model(tmp_path)


@torch.no_grad()
def mean_vector(layer: TreeSoftmax, node: int) -> torch.Tensor:
    """Mean embedding below a decision or leaf, by recursion, weighted by the probabilities of the biases."""
    n_decisions = len(layer.tree)
    if node >= n_decisions:
        words = torch.repeat_interleave(layer.places)
        return layer.word_vectors[words[node - n_decisions]]
    first, second = (mean_vector(layer, int(child)) for child in layer.tree[node])
    share = torch.sigmoid(layer.word_bias[node])
    return (1 - share) * first + share * second


@pytest.mark.parametrize("leaves", [0, 30])
def test_tied_decisions_are_differences_of_mean_embeddings(leaves):
    layer = make_tree_model(True, leaves)[0].output
    with torch.no_grad():
        layer.word_bias.normal_()
    differences = (layer.decision_weight() - layer.word_weight).detach()
    for node, (first, second) in enumerate(layer.tree.tolist()):
        expected = mean_vector(layer, second) - mean_vector(layer, first)
        torch.testing.assert_close(differences[node], expected)


def test_tied_decisions_follow_every_update():
    model, _ = make_tree_model(tied=True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    hidden, words = torch.randn(4, 6), torch.arange(4)
    with torch.no_grad():
        before = model.output.decision_weight()
        assert model.output.decision_weight() is before
    model.train().output.loss(hidden, words).backward()
    optimiser.step()
    with torch.no_grad():
        updated = model.eval().output.decision_weight()
        model.output.word_vectors += 1.0
        model.output.word_vectors[0] += 1.0
        changed = model.output.decision_weight()
    assert not torch.equal(before, updated)
    assert not torch.equal(updated, changed)


def test_a_tied_decision_between_two_words_is_that_of_a_softmax():
    layer = TreeSoftmax(3, 2, word_vectors=torch.nn.Parameter(torch.randn(2, 3)))
    hidden = torch.randn(5, 3)
    expected = torch.log_softmax(hidden @ layer.word_vectors.t(), dim=1)
    torch.testing.assert_close(layer.distribution(hidden), expected.detach())


def test_only_word_of_a_vocabulary_has_probability_one():
    layer = TreeSoftmax(4, 1)
    hidden, words = torch.randn(3, 4, requires_grad=True), torch.zeros(3, dtype=torch.int64)
    loss = layer.loss(hidden, words)
    loss.backward()
    assert loss == 0
    assert layer.log_probs(hidden, words, words).tolist() == [0, 0, 0]
    assert balanced_tree(1).shape == (0, 2)
