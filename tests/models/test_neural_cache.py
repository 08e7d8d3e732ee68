"""The neural cache: it agrees with its slow twin on all networks, in any company, cold and warm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.list_checks import join_history
from rescorer.models.neural import NeuralLanguageModel
from rescorer.trie import SENTENCE_END, build_trie
from rescorer_training.evaluation.past_text import cache_log_probs
from tests.support.neural_cache_twin import neural_cache_probs
from tests.support.tiny_models import NETWORK_WORDS, random_network, stable_network

sentences = st.lists(st.sampled_from((*NETWORK_WORDS[:4], "zebra", "yak")), max_size=4).map(tuple)
CONFIGS = {
    "lstm": {"kind": "lstm"},
    "carried": {"kind": "lstm", "carried": True},
    "gru, full": {"kind": "gru", "output": "full", "class_sizes": ()},
    "feed-forward": {"kind": "feedforward", "hidden_size": 6, "window": 2},
    "transformer": {"kind": "transformer", "embedding_size": 8, "layers": 2, "window": 6, "heads": 2},
}
TOLERANCE = 2e-4
"""Context vectors are float32, and θ multiplies their products."""


@st.composite
def sessions(draw):
    previous = draw(st.lists(sentences.filter(bool), max_size=3))
    certain = draw(st.booleans())
    sure = tuple(draw(st.sampled_from((0.0, 0.3, 1.0))) for _ in previous)
    history = join_history(previous, draw(sentences))
    flatness = draw(st.sampled_from((0.0, 0.1, 1.0))) if history else 0.0
    return history, () if certain else sure, flatness


batches = st.lists(st.tuples(sentences, sessions()), min_size=1, max_size=4)


@pytest.fixture(scope="module", params=CONFIGS)
def models(request):
    """The same network, with an empty cache for each trie, and with one that is kept."""
    network, words = stable_network(**CONFIGS[request.param])
    return [NeuralLanguageModel(network, words, context_cache_bytes=size) for size in (0, 1 << 20)]


def build(batch):
    words, past = zip(*batch, strict=True)
    histories, sure, flatness = zip(*past, strict=True)
    return build_trie(words, histories, sure, flatness)


def score(model, batch):
    """The probabilities of each hypothesis."""
    trie = build(batch)
    cached = model.score(trie).cached
    cached = np.zeros(trie.n_edges) if cached is None else cached
    return [cached[trie.path_edges(i)] for i in range(len(batch))]


@settings(max_examples=25, deadline=None)
@given(batches)
def test_agrees_with_the_twin_cold_and_warm_alone_and_in_company(models, batch):
    cold, warm = models
    found = [score(cold, batch), score(warm, batch), score(warm, batch)]
    found.append([score(cold, [item])[0] for item in batch])
    for i, (words, (history, sure, flatness)) in enumerate(batch):
        expected = neural_cache_probs(cold, words, history, flatness, sure) if flatness else 0.0
        for probs in found:
            np.testing.assert_allclose(probs[i], np.broadcast_to(expected, len(words) + 1), atol=TOLERANCE)


@settings(max_examples=25, deadline=None)
@given(sessions(), sentences)
def test_probabilities_sum_to_one_over_what_was_said(models, session, path):
    history, sure, flatness = session
    batch = [((*path, word), session) for word in {*history} - {SENTENCE_END}] + [(path, session)]
    total = sum(probs[len(path)] for probs in score(models[1], batch))
    has_words = flatness and score(models[1], [(path, session)]) and not (sure and not any(sure_of(session)))
    assert total == pytest.approx(1.0 if has_words else 0.0, abs=1e-9)


def sure_of(session):
    history, sure, _ = session
    ends = np.cumsum([word == SENTENCE_END for word in history]) - [word == SENTENCE_END for word in history]
    return [(*sure, 1.0)[end] for end in ends]


@settings(max_examples=25, deadline=None)
@given(batches)
def test_other_scores_are_those_without_it_bit_by_bit(models, batch):
    trie = build(batch)
    plain = build([(words, (history, sure, 0.0)) for words, (history, sure, _) in batch])
    scores, without = models[0].score(trie), models[0].score(plain)
    assert without.cached is None
    if trie.n_roots == plain.n_roots:  # else equal histories have another θ, and batches another shape
        np.testing.assert_array_equal(scores.log_probs, without.log_probs)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_agrees_roughly_in_lower_precision(dtype):
    config = {"embedding_size": 64, "hidden_size": 64}
    batch = [(("the", "cat"), (("the", "cat", "sat", SENTENCE_END, "the"), (), 0.1))]
    exact = score(NeuralLanguageModel(*random_network(**config)), batch)
    lower = score(NeuralLanguageModel(*random_network(**config), dtype=dtype), batch)
    np.testing.assert_allclose(lower[0], exact[0], atol=0.15)


def test_agrees_with_the_cache_of_perplexity():
    """The last word of a text, as ``rescorer-train perplexity --cache-words`` counts it."""
    network, words = random_network(carried=True)
    model = NeuralLanguageModel(network, words)
    text = ("the", "cat", "sat", SENTENCE_END, "the", "cat")
    (probs,) = score(model, [(("sat",), (text, (), 0.3))])
    ids = [words.end if word == SENTENCE_END else int(words.encode([word])[0]) for word in (*text, "sat")]
    with torch.inference_mode():
        vectors = network.network(torch.tensor([[words.end, *ids[:-1]]]))[0][0]
    expected = np.exp(cache_log_probs(vectors, torch.tensor(ids), 100, 0.3))[-1]
    assert probs[0] == pytest.approx(expected, abs=TOLERANCE)
    assert expected > 0
