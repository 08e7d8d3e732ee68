"""Distances between the hypotheses of a list, against the textbook's dynamic programme."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import LimitExceeded, decision
from rescorer.decision import code_list, distance_matrix
from tests.support.decision_twins import edit_distance, plain_distance_matrix

WORDS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "\ud800", "é", "🙂", "手a", "กิ"]), max_size=8).map(
    tuple
)
LISTS = st.lists(WORDS, min_size=1, max_size=10)


@given(LISTS, st.sampled_from(["word", "character", "mixed"]))
def test_agrees_with_plain_distances(words, unit):
    matrix = distance_matrix(words, unit)
    assert matrix.dtype == np.int32
    assert matrix.tolist() == plain_distance_matrix(words, unit)


@given(LISTS)
def test_codes_drop_common_ends_and_keep_each_distinct_hypothesis_once(words):
    coded = code_list(words)
    assert len(coded.codes) == len(set(words))
    assert [words.index(hypothesis) for hypothesis in words] == [
        words.index(list(dict.fromkeys(words))[i]) for i in coded.index
    ]
    if all(coded.codes):
        assert len({code[0] for code in coded.codes}) > 1
        assert len({code[-1] for code in coded.codes}) > 1


def test_more_hypotheses_than_a_block_and_longer_ones_than_a_machine_word():
    rng = np.random.default_rng(1)
    sizes = rng.integers(0, 90, decision.ROWS + 30)
    words = [tuple(str(i) for i in rng.integers(0, 6, size)) for size in sizes]
    matrix = distance_matrix(words)
    for i, j in rng.integers(0, len(words), (60, 2)):
        assert matrix[i, j] == edit_distance(words[i], words[j])


def test_more_distinct_words_than_fit_two_bytes():
    """Codes pass over the surrogates and beyond the basic multilingual plane."""
    words = [tuple(f"{i}-{j}" for j in range(700)) for i in range(100)]
    words.append((*words[99][:-1], "x"))
    matrix = distance_matrix(words)
    assert matrix[0, 1:].tolist() == [700] * 100
    assert matrix[99, 100] == 1


def test_refuses_lists_that_would_take_minutes():
    words = [tuple(f"{i}-{j}" for j in range(1000)) for i in range(400)]
    with pytest.raises(LimitExceeded, match="comparing 400 distinct hypotheses with up to 1,000 words takes"):
        distance_matrix(words)
    same_beginning = [(*("same",) * 10_000, *hypothesis[:2]) for hypothesis in words]
    assert distance_matrix(same_beginning).max() == 2


def test_a_list_within_the_limit_has_fewer_words_than_there_are_characters():
    assert (128 * decision.MAX_STEPS) ** 0.5 < 0x110000
