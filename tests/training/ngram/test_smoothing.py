"""Smoothing methods, with and without a gap: equal to slow twins, and distributions sum to one."""

from __future__ import annotations

import logging
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.models.ngram_files import read_ngram
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.ngram.estimate import SMOOTHINGS, NGramOptions, train_ngram
from rescorer_training.ngram.smoothing import estimate_good_turing
from tests.support.smoothing_twins import Corpus, SmoothingTwin

RAW = Normaliser(NormaliserSettings.raw())
TOLERANCE = 1e-4  # of float32 logarithms
words_of_text = st.lists(st.sampled_from("abcd"), min_size=1, max_size=6)
corpora = st.lists(words_of_text, min_size=1, max_size=10)
contexts = st.lists(st.sampled_from("abcde"), max_size=5).map(tuple)
methods = st.sampled_from(sorted(SMOOTHINGS))
cutoff_lists = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(lambda ks: (0, *sorted(ks)))


def train(corpus: Corpus, options: NGramOptions):
    with tempfile.TemporaryDirectory() as folder:
        text, output = Path(folder) / "text", Path(folder) / "m.ngram"
        text.write_text("".join(" ".join(words) + "\n" for words in corpus))
        train_ngram([text], RAW, output, options)
        return read_ngram(output)


def check_against_twin(corpus: Corpus, method: str, cutoffs, skip: int, context: tuple[str, ...]) -> None:
    options = NGramOptions(len(cutoffs), cutoffs, smoothing=method, skip=skip)
    model = train(corpus, options)
    vocabulary = ["<unk>", "</s>", *sorted(model.vocabulary())]
    twin = SmoothingTwin(corpus, set(vocabulary), method, cutoffs, skip)
    history = ["<s>"] * (1 + skip) + [word if word in vocabulary else "<unk>" for word in context]
    seen = tuple(history[: len(history) - skip][1 - len(cutoffs) :])
    found = np.exp(model.next_log_probs(context, vocabulary))
    np.testing.assert_allclose(found, [twin.prob(seen, word) for word in vocabulary], atol=TOLERANCE)
    assert found.sum() == pytest.approx(1.0, abs=TOLERANCE)


@settings(max_examples=30, deadline=None)
@given(corpora, methods, cutoff_lists, contexts)
def test_agrees_with_twin_and_sums_to_one(corpus, method, cutoffs, context):
    check_against_twin(corpus, method, cutoffs, 0, context)


@settings(max_examples=20, deadline=None)
@given(corpora, methods, st.integers(2, 4), st.integers(1, 2), contexts)
def test_agrees_with_twin_over_a_gap(corpus, method, order, skip, context):
    check_against_twin(corpus, method, (0,) * order, skip, context)


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("method", sorted(SMOOTHINGS))
def test_agrees_with_twin_if_discounts_are_estimated(method, skip):
    draw = random.Random(1)
    corpus = [
        [f"w{int(draw.paretovariate(0.7)) % 40}" for _ in range(draw.randint(1, 9))] for _ in range(150)
    ]
    for context in ((), ("w1",), ("w1", "w2", "w1"), ("w3", "w39", "w1", "w1")):
        check_against_twin(corpus, method, (0, 0, 0), skip, context)


def test_good_turing_discounts_of_a_known_table():
    """n_1 … n_6 = 120, 40, 20, 12, 8, 5; d_1 by hand: (2·40/120 - a)/(1 - a) with a = 6·5/120."""
    counts = np.repeat([1, 2, 3, 4, 5, 6], [120, 40, 20, 12, 8, 5])
    discounts = estimate_good_turing(counts, 3)
    assert discounts == pytest.approx((0.5555556, 0.6666667, 0.7333333, 0.7777778, 0.6666667))


@pytest.mark.parametrize(
    ("counts", "n_discounts", "message"),
    [
        ([1] * 40 + [2] * 10 + [3] * 3, 2, "order 3: Good-Turing discounts only of counts up to 2"),
        ([2, 2, 3], 0, "order 3: the counts allow no Good-Turing discounts"),
    ],
)
def test_discounts_fewer_counts_of_small_texts_with_a_warning(counts, n_discounts, message, caplog):
    with caplog.at_level(logging.WARNING):
        assert len(estimate_good_turing(np.array(counts), 3)) == n_discounts
    assert message in caplog.text


def test_relative_frequencies_of_the_example_in_the_documentation():
    houses = [line.split() for line in ("there is a big house", "i buy a house", "they buy the new house")]
    model = train(houses, NGramOptions(2, smoothing="none"))
    for sentence, expected in (("they buy a big house", 1 / 12), ("they buy a new house", 0.0)):
        words = sentence.split()
        chain = [model.next_log_probs(tuple(words[:i]), [word])[0] for i, word in enumerate([*words, "</s>"])]
        assert np.exp(sum(chain)) == pytest.approx(expected, abs=1e-6)
