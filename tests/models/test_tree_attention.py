"""Transformers over tries: the same vectors as from whole sentences, however the tree is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import BundleError
from rescorer.models import tree_attention
from rescorer.models.contexts import RowCache
from rescorer.models.kernels import is_int8_exact
from rescorer.models.network_files import NetworkConfig
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.transformer import rotary_table, rotate
from rescorer.models.tree_attention import build_prefix_tree, number_in_preorder, tree_vectors
from rescorer.runtime import ContextWords
from rescorer.trie import build_trie
from tests.support.reference_scorer import reference_log_probs
from tests.support.tiny_models import NETWORK_WORDS, stable_network

SESSION = ("the", "cat", "sat", "on", "the", "mat", "the", "dog", "ran")
words = st.sampled_from([*NETWORK_WORDS[:4], "nobody"])
sentences = st.lists(words, max_size=12).map(tuple)
contexts = st.one_of(st.integers(0, 9).map(lambda n: SESSION[:n]), st.lists(words, max_size=6).map(tuple))
batches = st.lists(st.tuples(sentences, contexts), min_size=1, max_size=12)
WINDOWS = (1, 2, 5, 60)


@pytest.fixture(scope="module")
def networks():
    return {
        window: stable_network(kind="transformer", window=window, layers=3, heads=2) for window in WINDOWS
    }


def assert_vectors_equal_forward(network, vocabulary, batch, cache):
    """Compare the vector of every node with a pass over the words that lead to it."""
    trie = build_trie(*zip(*batch, strict=True))
    ids = np.append(vocabulary.encode(trie.words), vocabulary.end)
    tree = build_prefix_tree(trie, ids, vocabulary.encode, vocabulary.start)
    with torch.inference_mode():
        vectors, rows = tree_vectors(network, tree, cache)
        rows = rows[tree.trie_nodes]
        for number, (hypothesis, context) in enumerate(batch):
            path = vocabulary.encode((*context, *hypothesis)).tolist()
            whole, _ = network(torch.tensor([[vocabulary.start, *path]]))
            edges = trie.path_edges(number)
            found = vectors[torch.from_numpy(rows[trie.edge_parent[edges]])]
            torch.testing.assert_close(found, whole[0, len(context) :], atol=1e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(WINDOWS),
    st.sampled_from([(4, 4), (4, 8), (32, 1024)]),
    st.sampled_from([0, 3000, 1 << 20]),
    st.lists(batches, min_size=1, max_size=3),
)
def test_tree_vectors_equal_forward(networks, window, sizes, cache_bytes, requests):
    """Also with blocks and chunks so small that a tree has several."""
    model, vocabulary = networks[window]
    cache = RowCache(cache_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "BLOCK_NODES", sizes[0])
        patch.setitem(tree_attention.CHUNK_NODES, "cpu", sizes[1])
        for batch in requests:
            assert_vectors_equal_forward(model.network, vocabulary, batch, cache)


def test_long_hypotheses_equal_forward(networks):
    """Longer than a chunk, and than the window; one leaves the common path early."""
    model, vocabulary = networks[5]
    path = tuple(NETWORK_WORDS[i * i % 7] for i in range(1500))
    batch = [(path, ()), (path[:3] + ("ran",) * 40, ()), ((*path[:1400], "fast"), ())]
    assert_vectors_equal_forward(model.network, vocabulary, batch, RowCache(0))


@given(batches)
def test_preorder_numbers_subtrees_without_gaps(batch):
    trie = build_trie(*zip(*batch, strict=True))
    parent = np.concatenate([np.zeros(trie.n_roots, dtype=np.int64), trie.parent[trie.n_roots :] + 1])
    parent = np.concatenate([[0], parent])  # one root above the roots
    levels = [slice(1, trie.n_roots + 1), *(slice(x.start + 1, x.stop + 1) for x in trie.levels())]
    first, last = number_in_preorder(parent, levels)
    assert sorted(first) == list(range(len(parent)))
    for node in range(len(parent)):
        below = {node}
        for child in range(node + 1, len(parent)):
            if parent[child] in below:
                below.add(child)
        assert sorted(first[list(below)]) == list(range(first[node], last[node] + 1))


def read_words(model, *texts):
    """Number of context words that the network reads for hypotheses after these contexts."""
    counted = ContextWords()
    with counted.counting():
        model.score(build_trie([("the",)] * len(texts), texts))
    return counted.needed - counted.recalled


def test_reads_each_word_of_a_context_once():
    model = NeuralLanguageModel(*stable_network(kind="transformer", window=8, layers=2))
    assert read_words(model, SESSION[:4]) == 4
    assert read_words(model, SESSION[:4], SESSION[:2]) == 0
    assert read_words(model, SESSION[:6], SESSION, ("fast", "cat")) == 5 + 2
    assert read_words(model, ()) == 0
    uncached = NeuralLanguageModel(
        *stable_network(kind="transformer", window=8, layers=2), context_cache_bytes=0
    )
    assert [read_words(uncached, SESSION[:4], SESSION) for _ in range(2)] == [9, 9]


def test_caches_only_the_words_within_the_window():
    model = NeuralLanguageModel(*stable_network(kind="transformer", window=4, layers=2))
    assert read_words(model, SESSION) == 9
    assert len(model.context_cache) == 3
    assert read_words(model, (*SESSION, "fast")) == 1  # the words before the window are not read again


def test_unknown_and_long_contexts_equal_reference():
    model = NeuralLanguageModel(*stable_network(kind="transformer", window=6, layers=2, carried=True))
    context = ("zebra", *SESSION * 20)
    for hypothesis in ((), ("the", "giraffe")):
        trie = build_trie([hypothesis], [context])
        np.testing.assert_allclose(
            model.score(trie).log_probs[trie.path_edges(0)],
            reference_log_probs(model, hypothesis, context),
            atol=1e-5,
        )


def test_scores_do_not_depend_on_the_batch():
    model = NeuralLanguageModel(*stable_network(kind="transformer", window=16, layers=2))
    generator = np.random.default_rng(0)
    batch = [
        tuple(generator.choice(NETWORK_WORDS, size=generator.integers(0, 30)).tolist()) for _ in range(200)
    ]
    together = build_trie(batch)
    total = together.sum_paths(model.score(together).log_probs)
    for i in range(0, len(batch), 20):
        alone = build_trie([batch[i]])
        np.testing.assert_allclose(alone.sum_paths(model.score(alone).log_probs), total[i], atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", *(["int8"] if is_int8_exact() else [])])
def test_low_precision_changes_scores_slightly(dtype):
    settings = {"kind": "transformer", "window": 8, "layers": 2, "hidden_size": 64, "embedding_size": 64}
    exact = NeuralLanguageModel(*stable_network(**settings))
    rounded = NeuralLanguageModel(*stable_network(**settings), dtype=dtype)
    trie = build_trie([("the", "cat", "sat"), ("the", "dog"), ("fast",), ()])
    difference = np.abs(exact.score(trie).log_probs - rounded.score(trie).log_probs)
    assert 1e-6 < difference.max() < 0.5


def test_carried_state_is_bounded_and_exact():
    """Segments with the state between them equal one pass, beyond the window too."""
    model, vocabulary = stable_network(kind="transformer", window=7, layers=2, heads=4)
    ids = torch.randint(0, len(vocabulary), (3, 50))
    with torch.no_grad():
        whole, _ = model.network(ids)
        state, read = None, []
        for segment in ids.split(6, dim=1):
            vectors, state = model.network(segment, state)
            read.append(vectors)
            assert all(part.shape[1] <= 6 for part in state[1:])
    torch.testing.assert_close(torch.cat(read, dim=1), whole, atol=1e-5, rtol=1e-5)


def test_products_of_rotated_vectors_depend_on_distances_alone():
    queries, keys = torch.randn(2, 1, 1, 8, dtype=torch.float64)
    table = rotary_table(100_010, 8, queries).unsqueeze(1)
    near, far = ((rotate(queries, table[[p + 7]]) * rotate(keys, table[[p]])).sum() for p in (2, 100_000))
    torch.testing.assert_close(near, far)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "window is 0 for transformer; expected at least 1"),
        ({"window": 5000}, "window is 5000; expected at least 0, at most 4,096"),
        ({"window": 8, "heads": 3}, "hidden_size is 200 with 3 heads; expected a multiple of 6"),
        ({"window": 8, "heads": 0}, "heads is 0; expected at least 1"),
        ({"window": 8, "residual": True}, "residual is true for transformer"),
        ({"window": 8, "weight_dropout": 0.1}, "weight_dropout is 0.1 for transformer"),
        ({"kind": "lstm", "heads": 2}, "heads is 2 for lstm; expected 1"),
    ],
)
def test_rejects_inconsistent_settings(values, message):
    with pytest.raises(BundleError, match=message):
        NetworkConfig(**{"vocabulary_size": 12, "class_sizes": (11,), "kind": "transformer", **values})
