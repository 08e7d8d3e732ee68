"""``ContextCache``: same scores as without it, fewer words read, bounded memory."""

from __future__ import annotations

import tracemalloc
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.models import contexts as contexts_module
from rescorer.models.contexts import BOOKKEEPING_BYTES, ContextCache
from rescorer.models.kernels import is_int8_exact
from rescorer.models.neural import NeuralLanguageModel
from rescorer.runtime import ContextWords
from rescorer.trie import build_trie
from tests.support.tiny_models import NETWORK_WORDS, stable_network

CONFIGS = [
    {"kind": "lstm"},
    {"kind": "lstm", "layers": 2, "hidden_size": 6},  # without projection, where the vector is the state
    {"kind": "gru", "carried": True},
    {"kind": "elman", "layers": 2, "residual": True},
    {"kind": "feedforward", "window": 3},
    {"kind": "lbl", "activation": "linear", "window": 2},
    {"kind": "transformer", "window": 4, "layers": 2, "heads": 2},
    {"kind": "transformer", "window": 40, "layers": 2, "carried": True},
]
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "int8": 0.05}
"""Rounding inputs of a product can turn a difference in the last bit into a whole step."""
DTYPES = ["float32", "bfloat16", *(["int8"] if is_int8_exact() else [])]
CACHE_BYTES = (0, 1100, 4000, 1 << 20)
"""Room for no context, one, a few, and all of them."""
SESSIONS = [("the", "cat", "sat", "on", "the", "mat") * 3, ("the", "dog", "nobody", "ran"), ("fast",) * 9]
sentences = st.lists(st.sampled_from([*NETWORK_WORDS, "nobody"]), max_size=4).map(tuple)
contexts = st.one_of(
    st.builds(lambda session, n: session[:n], st.sampled_from(SESSIONS), st.integers(0, 18)), sentences
)
batches = st.lists(st.tuples(sentences, contexts), min_size=1, max_size=6)


def language_model(config: dict, dtype: str, max_bytes: int) -> NeuralLanguageModel:
    return NeuralLanguageModel(*stable_network(**config), dtype=dtype, context_cache_bytes=max_bytes)


@pytest.fixture(scope="module")
def models() -> dict[str, list[list[NeuralLanguageModel]]]:
    """By dtype and config, models that differ in cache size only; the first has no cache.

    They live across examples, so that later examples find contexts of earlier ones.
    """
    return {
        dtype: [[language_model(config, dtype, size) for size in CACHE_BYTES] for config in CONFIGS]
        for dtype in DTYPES
    }


@pytest.mark.slow
@settings(max_examples=60)
@given(st.sampled_from(DTYPES), st.integers(0, len(CONFIGS) - 1), st.lists(batches, min_size=1, max_size=6))
def test_scores_equal_those_without_cache(models, dtype, config, lists):
    uncached, *cached = models[dtype][config]
    for batch in lists:
        trie = build_trie(*zip(*batch, strict=True))
        expected = uncached.score(trie).log_probs
        for model in cached:
            np.testing.assert_allclose(model.score(trie).log_probs, expected, atol=TOLERANCE[dtype])


class StepCounter:
    """Counts the words that a model's network reads."""

    def __init__(self, model: NeuralLanguageModel) -> None:
        self.model, self.words = model, 0
        network, step = model.model.network, model.model.network.step

        def counted(inputs, state):
            self.words += len(inputs)
            return step(inputs, state)

        object.__setattr__(network, "step", counted)

    def read_words(self, *contexts: tuple[str, ...]) -> int:
        """Score an empty hypothesis after each context; returns the context words read."""
        before, counted = self.words, ContextWords()
        with counted.counting():
            self.model.score(build_trie([()] * len(contexts), contexts))
        read = sum(map(len, contexts)) - counted.recalled
        assert counted.needed == sum(map(len, contexts))
        # besides a start word each, if a context has no beginning in the cache
        assert self.words - before - read in (0, len(contexts))
        return read


def test_reads_only_new_words_of_a_context():
    counter = StepCounter(language_model({"kind": "lstm"}, "float32", 1 << 20))
    session, other, _ = SESSIONS
    assert counter.read_words(session[:6]) == 6
    assert counter.read_words(session[:6]) == 0
    assert counter.read_words(session[:9], other, session[:6]) == 3 + 4
    assert counter.read_words(session[:18], session[:8]) == 9 + 2
    assert counter.read_words(session[:7]) == 1  # states after six and nine words are cached
    assert counter.read_words(()) == 0


def test_evicts_least_recently_used_context():
    a, b, c = ("the", "cat"), ("the", "mat"), ("fast", "dog")
    counter = StepCounter(language_model({"kind": "gru"}, "float32", 2 * (BOOKKEEPING_BYTES + 14 * 4)))
    assert [counter.read_words(context) for context in (a, b, a, c)] == [2, 2, 0, 2]
    assert [counter.read_words(context) for context in (a, c, b)] == [0, 0, 2]
    assert counter.read_words(a) == 2
    assert counter.read_words(*SESSIONS[1:]) == 4 + 9
    assert counter.read_words(*SESSIONS, a) == 18 + 2  # four contexts, and slots for two


def test_unknown_words_share_cache_entries():
    counter = StepCounter(language_model({"kind": "lstm"}, "float32", 1 << 20))
    assert (counter.read_words(("zebra", "ran")), counter.read_words(("giraffe", "ran"))) == (2, 0)


def test_does_not_cache_states_that_are_not_finite():
    trie = build_trie([("the",)], [SESSIONS[0]])
    expected = language_model({"kind": "lstm"}, "float32", 0).score(trie).log_probs
    model = language_model({"kind": "lstm"}, "float32", 1 << 20)
    embedding = model.model.network.embedding.weight
    with torch.no_grad():
        before = embedding.clone()
        embedding.fill_(float("nan"))
        assert not np.isfinite(model.score(trie).log_probs).any()
        embedding.copy_(before)
    np.testing.assert_allclose(model.score(trie).log_probs, expected, atol=1e-6)


def test_networks_with_a_window_cache_nothing():
    model = language_model({"kind": "feedforward", "window": 3}, "float32", 1 << 20)
    model.score(build_trie([("the",)], [("the", "cat")]))
    assert not len(model.context_cache)


@pytest.mark.parametrize("max_bytes", [1 << 18, 1 << 20])
def test_memory_is_bounded_and_batches_are_released(max_bytes):
    hidden = 200
    cache = ContextCache(max_bytes)
    batches = [[np.array([i, *range(n)]) for i in range(n * 40, n * 40 + 40)] for n in range(100)]
    rows = tuple(torch.zeros(40, hidden) for _ in range(3))
    tracemalloc.start()
    for batch in batches:
        cache.store(batch, rows)
        cache.recall(batch, lambda: rows)
    # Of the cache's own allocations only: other threads, such as those of pytest-xdist, allocate meanwhile.
    own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, contexts_module.__file__)])
    python_bytes = sum(trace.size for trace in own.traces)
    assert python_bytes > 0
    tracemalloc.stop()
    assert len(cache) == max_bytes // (3 * hidden * 4 + BOOKKEEPING_BYTES)
    assert cache._table.untyped_storage().nbytes() + python_bytes <= max_bytes
    newest = list(chain.from_iterable(batches))[-len(cache) :]
    n_known, _ = cache.recall(newest, lambda: tuple(torch.zeros(len(newest), hidden) for _ in range(3)))
    assert n_known == [len(context) for context in newest]
