"""The cache of a session: it agrees with its slow twin, sums to 1, and changes nothing without a session."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.list_checks import join_history
from rescorer.models.language_model import read_sessions
from rescorer.trie import SENTENCE_END, EdgeScores, build_trie
from tests.support.session_cache_twin import cache_prob, log_probs_with_cache

WORDS = ("the", "cat", "sat", "on", "dog")
sentences = st.lists(st.sampled_from(WORDS), max_size=5).map(tuple)


@st.composite
def sessions(draw):
    previous = draw(st.lists(sentences, max_size=4))
    numbers = st.just(0.0) | st.floats(1e-6, 1)
    given_confidences = draw(st.booleans())
    confidences = tuple(draw(numbers) for _ in previous) if given_confidences else ()
    return join_history(previous, draw(sentences)), confidences


def build(batch):
    words, before = zip(*batch, strict=True)
    return build_trie(words, [history for history, _ in before], [confidences for _, confidences in before])


@settings(deadline=None)
@given(st.lists(st.tuples(sentences, sessions()), min_size=1, max_size=6), st.floats(0.001, 0.5))
def test_agrees_with_the_twin(batch, share):
    trie = build(batch)
    log_probs = np.log(np.random.default_rng(0).uniform(0.001, 1, trie.n_edges))
    cache = read_sessions(trie, share)
    mixed = cache.interpolate(log_probs)
    for i, (words, (history, confidences)) in enumerate(batch):
        edges = trie.path_edges(i)
        expected = [
            cache_prob(word, words[:k], history, confidences) for k, word in enumerate((*words, SENTENCE_END))
        ]
        np.testing.assert_allclose(cache.probs[edges], expected, rtol=1e-9, atol=1e-300)
        twin = log_probs_with_cache(log_probs[edges].tolist(), words, history, confidences, share)
        np.testing.assert_allclose(mixed[edges], twin, rtol=1e-9)


@given(sessions(), sentences)
def test_probabilities_sum_to_one(session, path):
    trie = build([((*path, word), session) for word in WORDS] + [(path, session)])
    cache = read_sessions(trie, 0.2)
    edges = [trie.path_edges(i)[len(path)] for i in range(len(WORDS) + 1)]
    if cache.shares.any():
        assert cache.probs[edges].sum() == pytest.approx(1)
    else:
        assert not cache.probs.any()


@settings(deadline=None)
@given(st.lists(st.tuples(sentences, sessions()), min_size=2, max_size=6))
def test_scores_do_not_depend_on_company(batch):
    together, cache = build(batch), read_sessions(build(batch), 0.2)
    for i, item in enumerate(batch):
        alone = build([item])
        for name in ("probs", "shares"):
            own = getattr(read_sessions(alone, 0.2), name)[alone.path_edges(0)]
            assert (getattr(cache, name)[together.path_edges(i)] == own).all()


def test_nothing_said_before_changes_no_bit():
    trie = build_trie([("the", "cat"), ("the",)], [(), ("the", SENTENCE_END)], [(), (0.0,)])
    scores = EdgeScores(np.log(np.linspace(0.1, 0.9, trie.n_edges)), np.zeros(trie.n_edges, dtype=bool))
    assert (read_sessions(trie, 0.3).interpolate(scores.log_probs) == scores.log_probs).all()
    assert read_sessions(trie, 0.0) is None


def test_confidence_and_age_weaken_what_was_said():
    def prob(history, confidences=()):
        trie = build_trie([("cat",)], [history], [confidences])
        scores = EdgeScores(np.log(np.full(2, 0.01)), np.zeros(2, dtype=bool))
        return read_sessions(trie, 0.2).interpolate(scores.log_probs)[0]

    said = ("the", "cat", SENTENCE_END)
    assert prob(said) > prob(said, (0.5,)) > prob(said, (0.1,)) > prob(said, (0.0,)) == np.log(0.01)
    assert prob((*said, *("dog",) * 50)) < prob((*("dog",) * 50, SENTENCE_END, *said))


def test_equal_histories_of_other_confidence_have_roots_of_their_own():
    history = ("the", SENTENCE_END)
    trie = build_trie([("cat",)] * 3, [history] * 3, [(), (0.5,), ()])
    assert trie.n_roots == 2
    assert trie.hypothesis_node[0] == trie.hypothesis_node[2] != trie.hypothesis_node[1]
    assert trie.within_sentence.confidences == ((), ())
