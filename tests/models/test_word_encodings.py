"""Encodings of words: they agree with one sentence at a time, in any company, and in precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.ngram_files import read_ngram
from rescorer.pipeline import TrieScorer
from rescorer.trie import WordEncoder, build_trie
from tests.support.reference_scorer import reference_encoding
from tests.support.tiny_models import NETWORK_WORDS, random_network, write_arpa

sentences = st.lists(st.sampled_from((*NETWORK_WORDS, "zebra")), max_size=6).map(tuple)
batches = st.lists(
    st.tuples(sentences, st.sampled_from([(), ("the", "cat"), ("dog",)])), min_size=1, max_size=10
)
PROJECTION = np.random.default_rng(1).normal(size=(6, 3))
TOLERANCE = 1e-5
"""Context vectors are float32."""


@pytest.fixture(scope="module", params=["lstm", "feedforward"])
def model(request):
    kind = {"kind": request.param, "hidden_size": 6, "window": 2} if request.param == "feedforward" else {}
    return NeuralLanguageModel(*random_network(**kind))


@settings(max_examples=40, deadline=None)
@given(batches)
def test_encodings_agree_with_reference_and_do_not_depend_on_company(model, batch):
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    expected = model.score(trie).log_probs  # reads the contexts, so that both others find them in the cache
    scores = model.score(trie, {"mine": PROJECTION, "identity": np.eye(6)})
    np.testing.assert_allclose(scores.log_probs, expected, atol=1e-6)
    np.testing.assert_array_equal(scores.log_probs, model.score(trie).log_probs)
    np.testing.assert_allclose(
        scores.encodings["identity"] @ PROJECTION, scores.encodings["mine"], atol=1e-12
    )
    for (words, context), found in zip(batch, scores.encodings["mine"], strict=True):
        expected = reference_encoding(model, words, context, PROJECTION)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        alone = model.score(build_trie([words], [context]), {"mine": PROJECTION}).encodings["mine"][0]
        np.testing.assert_allclose(found, alone, atol=TOLERANCE)


@given(batches, st.integers(0, 99))
def test_mean_paths_averages_the_values_of_nodes(batch, seed):
    trie = build_trie(*zip(*batch, strict=True))
    values = np.random.default_rng(seed).normal(size=(trie.n_nodes, 2))
    for index, found in enumerate(trie.mean_paths(values)):
        nodes = [int(trie.hypothesis_node[index])]
        while nodes[-1] >= trie.n_roots:
            nodes.append(int(trie.parent[nodes[-1]]))
        np.testing.assert_allclose(found, values[nodes].mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_encodings_of_other_precisions_are_close(dtype):
    trie = build_trie([("the", "cat"), ("a", "dog", "ran"), ()])
    expected = NeuralLanguageModel(*random_network()).score(trie, {"mine": PROJECTION})
    found = NeuralLanguageModel(*random_network(), dtype=dtype).score(trie, {"mine": PROJECTION})
    np.testing.assert_allclose(found.encodings["mine"], expected.encodings["mine"], atol=0.1)


def test_projects_some_vectors_at_a_time(model, monkeypatch):
    trie = build_trie([("the", "cat"), ("a", "dog", "ran"), ()])
    expected = model.score(trie, {"mine": PROJECTION}).encodings["mine"]
    monkeypatch.setattr("rescorer.models.kernels.PROJECTED_ROWS", 2)
    found = model.score(trie, {"mine": PROJECTION}).encodings["mine"]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_refuses_models_whose_vectors_do_not_fit(model, tmp_path):
    scorer = TrieScorer({"ngram": read_ngram(write_arpa(tmp_path)), "neural": model}, "tiny/1")
    trie = build_trie([("the",)])
    assert scorer.score(trie, (), {"r": WordEncoder("neural", PROJECTION)})["ngram"].encodings == {}
    with pytest.raises(ConfigError, match="'ngram', an n-gram, which has no context vectors"):
        scorer.score(trie, (), {"r": WordEncoder("ngram", PROJECTION)})
    with pytest.raises(ConfigError, match="of length 5, but those of model 'neural' have the length 6"):
        scorer.score(trie, (), {"r": WordEncoder("neural", PROJECTION[:5])})


@pytest.mark.parametrize("projection", [np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0))])
def test_refuses_projections_of_other_shapes(projection):
    with pytest.raises(ConfigError, match="the projection of the context vectors of 'neural' has the shape"):
        WordEncoder("neural", projection)


def test_refuses_projections_that_are_not_finite():
    with pytest.raises(ConfigError, match="a value that is not finite"):
        WordEncoder("neural", np.full((6, 3), np.inf))
    with pytest.raises(ConfigError, match=r"a value beyond ±1e\+100"):
        WordEncoder("neural", np.full((6, 3), 1e300))
