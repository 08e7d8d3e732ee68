"""Check the alignment of lists with references, and its inverse."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from rescorer_training.lists.patterns import apply_pattern, find_pattern

SENTENCES = st.lists(st.sampled_from("abcd"), min_size=0, max_size=7).map(tuple)


@given(reference=SENTENCES.filter(bool), hypotheses=st.lists(SENTENCES, min_size=1, max_size=6))
def test_applying_a_pattern_restores_the_hypotheses(reference: tuple, hypotheses: list[tuple]) -> None:
    pattern = find_pattern(reference, hypotheses)
    assert apply_pattern(pattern, reference, pattern.wrong, pattern.inserted) == hypotheses
    errors = pattern.errors()
    assert errors.sum(axis=1).tolist() == [Levenshtein.distance(reference, words) for words in hypotheses]
    assert (errors[:, 2] - errors[:, 1]).tolist() == [len(words) - len(reference) for words in hypotheses]


@given(
    reference=SENTENCES.filter(bool),
    hypotheses=st.lists(SENTENCES, min_size=1, max_size=4),
    n_words=st.integers(1, 15),
)
def test_stretched_patterns_fit_references_of_other_lengths(reference, hypotheses, n_words: int) -> None:
    pattern = find_pattern(reference, hypotheses).stretch(n_words)
    assert pattern.words.shape == (len(hypotheses), n_words)
    assert pattern.gaps.shape == (len(hypotheses), n_words + 1)
    words = tuple(f"r{j}" for j in range(n_words))
    applied = apply_pattern(pattern, words, pattern.wrong, pattern.inserted)
    substitutions, deletions, insertions = pattern.errors().T
    assert [len(hypothesis) for hypothesis in applied] == (n_words - deletions + insertions).tolist()
    assert [sum(word in words for word in hypothesis) for hypothesis in applied] == (
        n_words - substitutions - deletions
    ).tolist()


def test_stretching_to_the_same_length_changes_nothing() -> None:
    pattern = find_pattern(("a", "b", "c"), [("a", "x"), ("y", "a", "b", "c", "z")])
    same = pattern.stretch(3)
    assert np.array_equal(same.words, pattern.words)
    assert np.array_equal(same.gaps, pattern.gaps)
    assert (same.wrong, same.inserted) == (pattern.wrong, pattern.inserted)


def test_twice_the_length_has_twice_the_wrong_words() -> None:
    pattern = find_pattern(("a", "b", "c"), [("a", "x", "c"), ("a", "c"), ("a", "q", "b", "c")])
    assert pattern.stretch(6).errors().tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 1]]
