"""Figures of predictions, and naive Bayes, beside slow twins and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.models.network_files import Vocabulary
from rescorer_training.classification import Accuracy, NaiveBayes, encode_sentences

VOCABULARY = Vocabulary(("</s>", "<unk>", "a", "b", "c", "<s>"))
PAIRS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=30)


@given(PAIRS)
def test_figures_equal_those_counted_one_by_one(rows):
    truth, predicted, n_words = map(np.array, zip(*rows, strict=True))
    accuracy = Accuracy(("x", "y", "z"), truth, predicted, n_words)
    for label in range(3):
        of_class = [p for t, p, _ in rows if t == label]
        as_class = [t for t, p, _ in rows if p == label]
        assert accuracy.recall()[label] == (of_class.count(label) / len(of_class) if of_class else None)
        assert accuracy.precision()[label] == (as_class.count(label) / len(as_class) if as_class else None)
        for other in range(3):
            assert accuracy.confusions[label, other] == sum((t, p) == (label, other) for t, p, _ in rows)
    groups = accuracy.by_length()
    assert sum(n for n, _ in groups.values()) == len(rows)
    assert sum(n * share for n, share in groups.values()) == pytest.approx(sum(t == p for t, p, _ in rows))
    if "2 to 3" in groups:
        chosen = [t == p for t, p, n in rows if n in (2, 3)]
        assert groups["2 to 3"] == (len(chosen), sum(chosen) / len(chosen))


LABELLED = st.lists(
    st.tuples(st.lists(st.sampled_from("abcx"), max_size=5), st.integers(0, 2)), min_size=1, max_size=12
)


@given(LABELLED, st.lists(st.lists(st.sampled_from("abcx"), max_size=5), min_size=1, max_size=4))
def test_naive_bayes_equals_the_formula(trained, asked):
    n_labels, n_words = 3, len(VOCABULARY)
    sentences, labels = zip(*trained, strict=True)
    model = NaiveBayes.fit(encode_sentences(sentences, labels, VOCABULARY), n_labels, n_words)
    probs = model.predict(encode_sentences(asked, [0] * len(asked), VOCABULARY))
    encode = lambda words: [*VOCABULARY.encode(words).tolist(), VOCABULARY.end]  # noqa: E731
    for row, words in zip(probs, asked, strict=True):
        products = []
        for label in range(n_labels):
            seen = [i for sentence, own in trained if own == label for i in encode(sentence)]
            product = (sum(own == label for _, own in trained) + 1) / (len(trained) + n_labels)
            for i in encode(words):
                product *= (seen.count(i) + 1) / (len(seen) + n_words)
            products.append(product)
        np.testing.assert_allclose(row, np.array(products) / sum(products), rtol=1e-9)
