"""States after contexts that were read before: the scores of a model that reads every one, for less work, in
bounded memory."""

from __future__ import annotations

import tracemalloc
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.lm.context_cache import BOOKKEEPING_BYTES, ContextCache
from rescorer.lm.context_stats import ContextWords
from rescorer.lm.int8 import int8_is_sound
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.trie import build_trie
from tests.support.tiny_models import NETWORK_WORDS, stable_network

WAYS = [
    {"kind": "lstm"},
    {"kind": "lstm", "layers": 2, "hidden_size": 6},  # without a projection the vector is the state
    {"kind": "gru", "carried": True},
    {"kind": "elman", "layers": 2, "residual": True},
    {"kind": "feedforward", "window": 3},
    {"kind": "lbl", "activation": "linear", "window": 2},
]
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "int8": 0.05}
"""Where products are rounded, a last bit may become a whole step."""
DTYPES = ["float32", "bfloat16", *(["int8"] if int8_is_sound() else [])]
SIZES = (0, 1100, 4000, 1 << 20)
"""Of nothing, one context, a few, and all of them."""
SESSIONS = [("the", "cat", "sat", "on", "the", "mat") * 3, ("the", "dog", "nobody", "ran"), ("fast",) * 9]
sentences = st.lists(st.sampled_from([*NETWORK_WORDS, "nobody"]), max_size=4).map(tuple)
contexts = st.one_of(
    st.builds(lambda session, n: session[:n], st.sampled_from(SESSIONS), st.integers(0, 18)), sentences
)
batches = st.lists(st.tuples(sentences, contexts), min_size=1, max_size=6)


def language_model(way: dict, dtype: str, max_bytes: int) -> NeuralLanguageModel:
    return NeuralLanguageModel(*stable_network(**way), dtype=dtype, context_cache_bytes=max_bytes)


@pytest.fixture(scope="module")
def alike() -> dict[str, list[list[NeuralLanguageModel]]]:
    """By dtype, models that differ in their memory for contexts alone; the first has none. They keep what
    they have read in one example for the next."""
    return {each: [[language_model(way, each, size) for size in SIZES] for way in WAYS] for each in DTYPES}


@settings(max_examples=60)
@given(st.sampled_from(DTYPES), st.integers(0, len(WAYS) - 1), st.lists(batches, min_size=1, max_size=6))
def test_scores_are_those_of_a_model_that_reads_every_context(alike, dtype, way, lists):
    reading, *remembering = alike[dtype][way]
    for batch in lists:
        trie = build_trie(*zip(*batch, strict=True))
        expected = reading.score(trie).log_probs
        for model in remembering:
            np.testing.assert_allclose(model.score(trie).log_probs, expected, atol=TOLERANCE[dtype])


class Steps:
    """How many words a model's network reads, the start word among them."""

    def __init__(self, model: NeuralLanguageModel) -> None:
        self.model, self.words = model, 0
        network, step = model.model.network, model.model.network.step

        def counted(inputs, state):
            self.words += len(inputs)
            return step(inputs, state)

        object.__setattr__(network, "step", counted)

    def of(self, *contexts: tuple[str, ...]) -> int:
        """For lists of one empty hypothesis with these contexts, less the start words."""
        before, counted = self.words, ContextWords()
        with counted.counting():
            self.model.score(build_trie([()] * len(contexts), contexts))
        read = self.words - before - len(contexts)
        assert counted == ContextWords(sum(map(len, contexts)), sum(map(len, contexts)) - read)
        return read


def test_of_a_context_only_what_is_new_is_read():
    steps = Steps(language_model({"kind": "lstm"}, "float32", 1 << 20))
    session, other, _ = SESSIONS
    assert steps.of(session[:6]) == 6
    assert steps.of(session[:6]) == 0
    assert steps.of(session[:9], other, session[:6]) == 3 + 4
    assert steps.of(session[:18], session[:8]) == 9 + 2
    assert steps.of(session[:7]) == 1  # six are known, eight are too many
    assert steps.of(()) == 0


def test_what_was_not_asked_for_the_longest_goes_first():
    a, b, c = ("the", "cat"), ("the", "mat"), ("fast", "dog")
    steps = Steps(language_model({"kind": "gru"}, "float32", 2 * (BOOKKEEPING_BYTES + 14 * 4)))
    assert [steps.of(each) for each in (a, b, a, c)] == [2, 2, 0, 2]
    assert [steps.of(each) for each in (a, c, b)] == [0, 0, 2]
    assert steps.of(a) == 2
    assert steps.of(*SESSIONS[1:]) == 4 + 9
    assert steps.of(*SESSIONS, a) == 18 + 2  # four, and room for two


def test_words_that_the_model_does_not_know_are_one():
    steps = Steps(language_model({"kind": "lstm"}, "float32", 1 << 20))
    assert (steps.of(("zebra", "ran")), steps.of(("giraffe", "ran"))) == (2, 0)


def test_what_a_fault_made_of_a_context_is_not_kept():
    trie = build_trie([("the",)], [SESSIONS[0]])
    sound = language_model({"kind": "lstm"}, "float32", 0).score(trie).log_probs
    model = language_model({"kind": "lstm"}, "float32", 1 << 20)
    embedding = model.model.network.embedding.weight
    with torch.no_grad():
        before = embedding.clone()
        embedding.fill_(float("nan"))
        assert not np.isfinite(model.score(trie).log_probs).any()
        embedding.copy_(before)
    np.testing.assert_allclose(model.score(trie).log_probs, sound, atol=1e-6)


def test_networks_with_a_window_keep_nothing():
    model = language_model({"kind": "feedforward", "window": 3}, "float32", 1 << 20)
    model.score(build_trie([("the",)], [("the", "cat")]))
    assert not len(model._contexts)


@pytest.mark.parametrize("max_bytes", [1 << 18, 1 << 20])
def test_memory_is_bounded_and_no_large_batch_is_held(max_bytes):
    hidden = 200
    cache = ContextCache(max_bytes)
    batches = [[np.array([i, *range(n)]) for i in range(n * 40, n * 40 + 40)] for n in range(100)]
    rows = tuple(torch.zeros(40, hidden) for _ in range(3))
    tracemalloc.start()
    for batch in batches:
        cache.keep(batch, rows)
        cache.recall(batch, rows)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cache) == max_bytes // (3 * hidden * 4 + BOOKKEEPING_BYTES)
    assert cache._table.untyped_storage().nbytes() + taken <= max_bytes
    newest = list(chain.from_iterable(batches))[-len(cache) :]
    assert cache.recall(newest, tuple(torch.zeros(len(newest), hidden) for _ in range(3)))[0] == [
        len(each) for each in newest
    ]
