"""Backward models: the suffix trie, and the scores that reversed sentences have one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import BundleError, ConfigError
from rescorer.models.language_model import mix_scores
from rescorer.models.network_files import NetworkConfig
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.ngram_files import read_ngram
from rescorer.models.ngrams import align_vocabularies
from rescorer.trie import build_trie
from rescorer.weights import check_mixture
from tests.support.random_ngrams import WORDS as NGRAM_WORDS
from tests.support.random_ngrams import random_orders, write_random_arpa
from tests.support.reference_scorer import reference_encoding, reference_log_probs
from tests.support.tiny_models import NETWORK_WORDS, random_network, stable_network, write_arpa

words_of = st.lists(st.sampled_from((*NETWORK_WORDS[:4], "zebra", "nobody")), max_size=7).map(tuple)
batch_of = st.lists(
    st.tuples(words_of, st.sampled_from([(), ("the",), ("nobody", "ran")])), min_size=1, max_size=12
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two n-grams and two networks, one of each direction, from the same parameters."""
    arpa = write_arpa(tmp_path_factory.mktemp("arpa"))
    models = {
        "ngram": read_ngram(arpa),
        "back": read_ngram(arpa, backward=True),
        "neural": NeuralLanguageModel(*random_network()),
        "leftward": NeuralLanguageModel(*random_network(backward=True)),
    }
    align_vocabularies(list(models.values()))
    return models


def read_paths(trie, batch):
    """The words on the path to the end of each hypothesis."""
    paths = [trie.path_edges(i)[:-1] for i in range(len(batch))]
    return [tuple(trie.words[trie.edge_word[edge]] for edge in path) for path in paths]


@given(batch_of)
def test_reversed_trie_is_that_of_reversed_hypotheses(batch):
    hypotheses, contexts = zip(*batch, strict=True)
    found = build_trie(hypotheses, contexts).reversed
    expected = build_trie([words[::-1] for words in hypotheses])
    assert (found.n_nodes, found.n_edges, found.n_roots) == (expected.n_nodes, expected.n_edges, 1)
    assert read_paths(found, batch) == [words[::-1] for words in hypotheses]


@given(batch_of)
def test_reversed_trie_of_a_reversed_trie_has_the_hypotheses(batch):
    hypotheses, _ = zip(*batch, strict=True)
    trie = build_trie(hypotheses)
    assert read_paths(trie.reversed.reversed, batch) == list(hypotheses)
    assert trie.in_direction(False) is trie
    assert trie.in_direction(True) is trie.reversed  # built once


def test_reversed_trie_of_nothing():
    assert build_trie([]).reversed.n_nodes == 1


@settings(max_examples=30)
@given(batch_of)
def test_backward_scores_are_forward_scores_of_reversed_sentences(models, batch):
    trie = build_trie(*zip(*batch, strict=True))
    # the shares of <unk> are rounded, everything else of an n-gram is exactly equal
    for forward, backward, tolerance in (("ngram", "back", 1e-14), ("neural", "leftward", 1e-5)):
        scores = models[backward].score(trie)
        assert scores.backward
        sums = scores.sum_paths(trie)
        for i, (words, _) in enumerate(batch):
            alone = build_trie([words[::-1]])
            *expected, end = models[forward].score(alone).log_probs[alone.path_edges(0)]
            found = scores.log_probs[scores.path_edges(trie, i)]
            np.testing.assert_allclose(found, [*expected[::-1], end], rtol=0, atol=tolerance)
            np.testing.assert_allclose(sums[i], sum(expected) + end, rtol=1e-12, atol=10 * tolerance)


@settings(max_examples=20)
@given(batch_of)
def test_backward_models_agree_with_the_reference(models, batch):
    trie = build_trie(*zip(*batch, strict=True))
    for name in ("back", "leftward"):
        scores = models[name].score(trie)
        for i, (words, context) in enumerate(batch):
            expected = reference_log_probs(models[name], words, context)
            np.testing.assert_allclose(scores.log_probs[scores.path_edges(trie, i)], expected, atol=1e-4)


random_sentences = st.lists(st.lists(st.sampled_from(NGRAM_WORDS), max_size=6), min_size=1, max_size=4)


@settings(max_examples=6)
@given(st.integers(0, 1000), st.integers(2, 4), random_sentences)
def test_random_ngrams_agree_with_the_reference(tmp_path_factory, seed, order, sentences):
    path = write_random_arpa(tmp_path_factory.mktemp("arpa") / "a.arpa", random_orders(seed, order))
    model = read_ngram(path, backward=True)
    trie = build_trie([tuple(words) for words in sentences])
    scores = model.score(trie)
    for i, words in enumerate(sentences):
        expected = reference_log_probs(model, tuple(words))
        np.testing.assert_allclose(scores.log_probs[scores.path_edges(trie, i)], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "elman", "feedforward", "lbl", "transformer"])
def test_every_kind_of_network_reads_backwards(kind):
    options = {"window": 2} if kind in ("feedforward", "lbl") else {}
    options |= {"window": 8, "heads": 2} if kind == "transformer" else {}
    model = NeuralLanguageModel(*stable_network(kind=kind, backward=True, **options))
    sentences = [("the", "cat", "sat"), ("the", "mat", "sat"), (), ("sat",)]
    trie = build_trie(sentences, [("the",)] * 4)
    projection = np.random.default_rng(0).normal(size=(model.vector_size, 3))
    scores = model.score(trie, {"": projection})
    for i, words in enumerate(sentences):
        found = scores.log_probs[scores.path_edges(trie, i)]
        np.testing.assert_allclose(found, reference_log_probs(model, words), atol=1e-4)
        expected = reference_encoding(model, words, ("the",), projection)
        np.testing.assert_allclose(scores.encodings[""][i], expected, atol=1e-4)


@settings(max_examples=20)
@given(batch_of, st.randoms())
def test_order_and_company_do_not_matter(models, batch, random):
    hypotheses, contexts = zip(*batch, strict=True)
    order = random.sample(range(len(batch)), len(batch))
    for name, tolerance in (("back", 0), ("leftward", 1e-4)):
        trie = build_trie(hypotheses, contexts)
        sums = models[name].score(trie).sum_paths(trie)
        other = build_trie([hypotheses[i] for i in order])
        shuffled = models[name].score(other).sum_paths(other)
        np.testing.assert_allclose(shuffled, sums[order], rtol=0, atol=tolerance)


def test_partial_hypotheses_keep_the_start_of_the_sentence(models):
    trie, partial = build_trie([("the", "cat"), ("the",)]), np.array([True, False])
    forward, backward = (models[name].score(trie) for name in ("ngram", "back"))
    assert forward.sum_paths(trie, partial)[0] > forward.sum_paths(trie)[0]
    assert (backward.sum_paths(trie, partial) == backward.sum_paths(trie)).all()


def test_unknown_words_are_counted_in_both_directions(models):
    trie = build_trie([("nobody", "sat"), ("the", "cat", "dog", "dog")])
    assert models["back"].score(trie).count_unknown(trie).tolist() == [1, 2]


def test_models_of_one_direction_are_mixed(models):
    trie = build_trie([("the", "cat"), ("cat",)])
    scores = {name: models[name].score(trie) for name in ("back", "leftward")}
    mixed = mix_scores(scores, {"back": 0.25, "leftward": 0.75})
    parts = [0.25 * np.exp(scores["back"].log_probs), 0.75 * np.exp(scores["leftward"].log_probs)]
    assert mixed.backward
    np.testing.assert_allclose(mixed.log_probs, np.log(sum(parts)))


def test_directions_are_not_mixed():
    check_mixture({"a": 0.5, "b": 0.5}, ["a", "b", "c"], ["a", "b"])
    with pytest.raises(ConfigError, match="forward model 'b' and the backward model 'a'"):
        check_mixture({"a": 0.5, "b": 0.5}, ["a", "b"], ["a"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backward": 1}, "backward is 1; expected true or false"),
        ({"backward": "yes"}, "backward is 'yes'; expected true or false"),
        ({"backward": True, "carried": True}, "carried is true for a backward network; expected false"),
    ],
)
def test_rejects_wrong_directions(settings, message):
    with pytest.raises(BundleError, match=message):
        NetworkConfig(9, (2, 6), **settings)
    config = NetworkConfig(9, (2, 6)).to_dict()
    del config["backward"]
    assert not NetworkConfig.from_dict(config).backward  # an older file
