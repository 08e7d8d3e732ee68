"""Rerankers: scores agree with their definition, and say what each feature adds to them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from rescorer.errors import ConfigError
from rescorer.ranking import best_first, posteriors
from rescorer.reranking.features import FEATURE_KINDS, check_feature
from rescorer.reranking.networks import Ensemble, PerceptronSizes
from rescorer.reranking.reranker import Reranker
from rescorer.trie import WordEncoder
from rescorer.types import Weights
from tests.support.tiny_rerankers import linear_ensemble

FEATURES = (
    "total", "score:acoustic", "score_per_word:lm", "words", "characters", "oov", "empty", "log_rank",
    "first", "posterior:2", "distance:1", "distance:3", "word_mean:1", "word_least:2", "slot_mean:1",
    "slot_least:1", "copies", "repeats", "overlap:1", "overlap:2",
)  # fmt: skip
BASE = Weights(streams={"acoustic": 1.0}, lm={"lm": 0.5})
finite = st.floats(-50, 50)


@st.composite
def lists(draw):
    words = draw(st.lists(st.lists(st.sampled_from("abc"), max_size=6).map(tuple), min_size=1, max_size=8))
    column = st.lists(finite, min_size=len(words), max_size=len(words)).map(np.array)
    lengths = np.array([float(len(hypothesis)) for hypothesis in words])
    components = {"acoustic": draw(column), "lm": draw(column), "words": lengths, "oov": np.zeros(len(words))}
    return components, words, tuple(draw(st.lists(st.sampled_from("abc"), max_size=6)))


def slow_features(components, words, context):
    """Each feature by its definition, hypothesis by hypothesis."""
    total = components["acoustic"] + 0.5 * components["lm"]
    pivot = words[best_first(total)[0]]
    places = [find_places(pivot, hypothesis) for hypothesis in words]
    rows = []
    for i, hypothesis in enumerate(words):

        def distance(t, hypothesis=hypothesis):
            pairs = zip(posteriors(total, t), words, strict=True)
            return sum(p * Levenshtein.distance(hypothesis, other) for p, other in pairs)

        def in_list(t, hypothesis=hypothesis):
            p = posteriors(total, t)
            have = [sum(p[j] for j, other in enumerate(words) if word in other) for word in hypothesis]
            return have or [0.0]

        def in_place(t, hypothesis=hypothesis, own=places[i]):
            p = posteriors(total, t)
            pairs = zip(own, hypothesis, strict=True)
            others = [set(zip(where, other, strict=True)) for where, other in zip(places, words, strict=True)]
            return [sum(p[j] for j, other in enumerate(others) if pair in other) for pair in pairs] or [0.0]

        repeats = sum(a == b for a, b in pairwise(hypothesis))
        repeats += sum(
            hypothesis[j : j + 2] == hypothesis[j + 2 : j + 4] for j in range(max(len(hypothesis) - 3, 0))
        )
        pairs = list(pairwise(context))
        rows.append({
            "total": total[i], "score:acoustic": components["acoustic"][i],
            "score_per_word:lm": components["lm"][i] / max(len(hypothesis), 1), "words": len(hypothesis),
            "characters": len("".join(hypothesis)), "oov": 0, "empty": not hypothesis,
            "log_rank": np.log(i + 1),
            "first": i == 0, "posterior:2": posteriors(total, 2)[i], "distance:1": distance(1),
            "distance:3": distance(3), "word_mean:1": np.mean(in_list(1)), "word_least:2": min(in_list(2)),
            "slot_mean:1": np.mean(in_place(1)), "slot_least:1": min(in_place(1)),
            "copies": np.log(words.count(hypothesis)), "repeats": repeats,
            "overlap:1": sum(word in context for word in hypothesis),
            "overlap:2": sum(pair in pairs for pair in pairwise(hypothesis)),
        })  # fmt: skip
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}


def find_places(pivot, hypothesis):
    """The place of each word: an index of the pivot, or how many words were inserted before one so far."""
    places = []
    for tag, begin, end, *target in Levenshtein.opcodes(pivot, hypothesis):
        if tag == "insert":
            places += [(begin, k) for k in range(1, target[1] - target[0] + 1)]
        elif tag != "delete":
            places += range(begin, end)
    return places


@given(lists())
def test_features_agree_with_their_definition(nbest):
    reranker = make_reranker(FEATURES)
    x = reranker.inputs(*nbest)
    for name, values in slow_features(*nbest).items():
        np.testing.assert_allclose(
            x[:, FEATURES.index(name)], values - values.mean(), atol=1e-9, err_msg=name
        )
    assert {name.partition(":")[0] for name in FEATURES} == set(FEATURE_KINDS)


@given(lists(), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 99))
def test_scores_agree_with_their_definition(nbest, members, units, size, seed):
    random = np.random.default_rng(seed)
    n = len(FEATURES) + size
    u, v = random.normal(size=(members, n)), random.normal(size=(members, units))
    w, b = random.normal(size=(members, n, units)), random.normal(size=(members, units))
    encoder = WordEncoder("neural", np.ones((5, size))) if size else None
    sizes = PerceptronSizes(len(FEATURES), size, units)
    parameters = {"linear": u} | ({"hidden": w, "bias": b, "output": v} if units else {})
    reranker = replace(make_reranker(FEATURES), ensemble=Ensemble(sizes, parameters), encoder=encoder)
    encoding = random.normal(size=(len(nbest[1]), size))
    inputs = np.concatenate([reranker.inputs(*nbest), encoding - encoding.mean(axis=0)], axis=1)
    expected = [
        np.mean([u[m] @ x + sum(v[m, k] * np.tanh(w[m, :, k] @ x + b[m, k]) for k in range(units))
                 for m in range(members)])
        for x in inputs
    ]  # fmt: skip
    np.testing.assert_allclose(reranker.score(*nbest, encoding), expected, atol=1e-9)


@given(lists(), st.integers(0, 99))
def test_contributions_to_a_linear_score_add_up_to_it(nbest, seed):
    weights = np.random.default_rng(seed).normal(size=(2, len(FEATURES)))
    reranker = make_reranker(FEATURES, linear_ensemble(weights))
    parts = reranker.contributions(reranker.inputs(*nbest))
    np.testing.assert_allclose(parts.sum(axis=1), reranker.score(*nbest), atol=1e-9)


def make_reranker(features, ensemble=None):
    ensemble = ensemble or linear_ensemble(np.ones((1, len(features))))
    return Reranker("mine", tuple(features), np.ones(len(features)), BASE, ensemble)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ("scores:am", "did you mean"),
        ("score", "expected score:NAME"),
        ("words:3", "expected words without an argument"),
        ("distance:0", "a temperature above 0"),
        ("distance:nan", "a temperature above 0"),
        ("distance:x", "a temperature above 0"),
        ("overlap:6", "N from 1 to 5"),
    ],
)
def test_refuses_unknown_features(feature, message):
    with pytest.raises(ConfigError, match=message):
        check_feature(feature)


def test_says_what_it_needs():
    assert make_reranker(["score:am", "score_per_word:ngram", "words"]).needs == (
        "acoustic", "lm", "am", "ngram",
    )  # fmt: skip
