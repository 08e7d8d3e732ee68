"""Nearest words of words and of sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer_training.vectors.files import WordVectors
from rescorer_training.vectors.judgement import find_neighbours, parse_sum
from tests.support.random_vectors import random_vectors


@given(seed=st.integers(0, 1000), text=st.sampled_from(["w3", "w1 - w2 + w5", "- w1", "+ w1 + w1"]))
def test_finds_the_highest_cosines(seed, text):
    vectors = random_vectors(20, 4, seed)
    terms = parse_sum(text, vectors)
    unit = vectors.matrix / np.linalg.norm(vectors.matrix, axis=1, keepdims=True)
    target = sum(sign * unit[row] for sign, row in terms)
    cosines = {
        word: float(row @ target / np.linalg.norm(target))
        for number, (word, row) in enumerate(zip(vectors.words, unit, strict=True))
        if number not in [row for _, row in terms]
    }
    found = find_neighbours(vectors, terms, 5)
    assert [item.word for item in found] == sorted(cosines, key=cosines.__getitem__, reverse=True)[:5]
    assert [item.cosine for item in found] == pytest.approx([cosines[item.word] for item in found], abs=1e-5)
    assert len(find_neighbours(vectors, terms, 99)) == len(cosines)


def test_a_word_with_a_vector_is_not_a_sum():
    vectors = WordVectors(("a", "-", "a - b"), np.eye(3, dtype=np.float32))
    assert parse_sum("a - b", vectors) == [(1, 2)]
    assert parse_sum("-", vectors) == [(1, 1)]
    assert parse_sum("a - -", vectors) == [(1, 0), (-1, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kyng", "'kyng' has no vector; did you mean 'king'?"),
        ("king +", "expected a word, or a sum such as"),
        ("king queen", "expected a word, or a sum such as"),
        (" ", "expected a word, or a sum"),
        ("king - king", "cancel each other"),
    ],
)
def test_explains_what_is_not_a_query(text, message):
    vectors = WordVectors(("king", "queen"), np.eye(2, dtype=np.float32))
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        find_neighbours(vectors, parse_sum(text, vectors), 1)
