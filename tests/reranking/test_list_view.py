"""Coded words, places of words and n-grams of a list agree with plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from rescorer.errors import LimitExceeded
from rescorer.reranking import features
from rescorer.reranking.features import ListView, code_ngrams

texts = st.lists(st.lists(st.sampled_from("abcd"), max_size=7).map(tuple), min_size=1, max_size=6)


def make_view(words, context=(), totals=None):
    lengths = np.array([float(len(hypothesis)) for hypothesis in words])
    totals = np.zeros(len(words)) if totals is None else np.array(totals)
    return ListView({"words": lengths}, words, tuple(context), totals)


@given(texts, st.lists(st.sampled_from("abx")))
def test_codes_words(words, context):
    view = make_view(words, context)
    spelled = list(view.vocabulary)
    assert [spelled[code] for code in view.codes] == [word for hypothesis in words for word in hypothesis]
    assert view.rows.tolist() == [i for i, hypothesis in enumerate(words) for _ in hypothesis]
    assert [tuple(view.codes[a:b]) for a, b in pairwise(view.offsets)] == [
        tuple(view.vocabulary[word] for word in hypothesis) for hypothesis in words
    ]
    assert [spelled[code] if code >= 0 else None for code in view.context_codes] == [
        word if word in view.vocabulary else None for word in context
    ]
    pairs = {(i, view.vocabulary[word]) for i, hypothesis in enumerate(words) for word in hypothesis}
    for max_cells in (features.MAX_VIEW_CELLS, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(features, "MAX_VIEW_CELLS", max_cells)
            rows, codes = make_view(words).word_keys
        assert sorted(pairs) == list(zip(rows.tolist(), codes.tolist(), strict=True))
    assert [[ord(character) for character in text] for text in view.texts] == [
        [view.vocabulary[word] for word in hypothesis] for hypothesis in words
    ]


@given(texts, st.data())
def test_least_and_mean_of_each_hypothesis(words, data):
    view = make_view(words)
    n = len(view.codes)
    values = np.array(data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)), dtype=float)
    parts = [values[a:b] for a, b in pairwise(view.offsets)]
    assert view.least_per_row(values).tolist() == [min(part, default=0.0) for part in parts]
    means = [part.mean() if len(part) else 0.0 for part in parts]
    np.testing.assert_allclose(view.mean_per_row(values), means, atol=1e-12)


@given(texts, st.data())
def test_alignments_with_the_best_hypothesis_are_shortest(words, data):
    best = data.draw(st.integers(0, len(words) - 1))
    view = make_view(words, totals=[float(i == best) for i in range(len(words))])
    step = max(map(len, words)) + 1
    found = features.find_slots(view)
    pivot = words[best]
    for hypothesis, (begin, end) in zip(words, pairwise(view.offsets), strict=True):
        own = found[begin:end]
        places, inserted = own // step, own % step
        assert (np.diff(places + np.where(inserted, inserted / step, 1)) > 0).all()
        kept = {
            int(place): word for place, n, word in zip(places, inserted, hypothesis, strict=True) if n == 0
        }
        errors = int((inserted > 0).sum()) + len(pivot) - len(kept)
        errors += sum(pivot[place] != word for place, word in kept.items())
        assert errors == Levenshtein.distance(pivot, hypothesis)


def test_aligns_lists_of_many_words_within_a_limit(monkeypatch):
    words = [tuple(f"w{i}" for i in range(60_000)), ("w0", "x")]  # codes among the surrogates of UTF-16
    assert features.find_slots(make_view(words))[-2:].tolist() == [0, 60_001]
    monkeypatch.setattr(features, "MAX_STEPS", 1000)
    with pytest.raises(LimitExceeded, match="2 hypotheses of up to 60,000 words takes"):
        features.find_slots(make_view(words))


@given(
    st.lists(st.integers(-1, 4)),
    st.lists(st.integers(-1, 4)),
    st.integers(1, 5),
    st.sampled_from([1 << 62, 20]),
)
def test_codes_of_equal_ngrams_are_equal(one, other, order, max_code):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "MAX_CODE", max_code)
        found = code_ngrams(np.array(one, np.int64), np.array(other, np.int64), order)
    ngrams = [tuple(words[i : i + order]) for words in (one, other) for i in range(len(words) - order + 1)]
    codes = np.concatenate(found).tolist()
    assert len(codes) == len(ngrams)
    pairs = set(zip(codes, ngrams, strict=True))
    assert len(pairs) == len(set(codes)) == len(set(ngrams))
