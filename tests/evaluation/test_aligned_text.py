"""Aligned texts have the errors that are counted, and both texts can be read from them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import InvalidList
from rescorer.evaluation.error_analysis import AlignedPair, Aligner, Column, align_three, align_tokens
from rescorer.evaluation.error_rate import CountingSettings, align_words, count_errors
from rescorer.text import Normaliser

words = st.lists(st.sampled_from("abc"), max_size=9).map(tuple)


@pytest.mark.parametrize(("method", "count"), [("levenshtein", count_errors), ("sclite", align_words)])
@given(reference=words, hypothesis=words)
def test_alignment_has_the_counted_errors(method, count, reference, hypothesis):
    pairs = align_tokens(reference, hypothesis, method)
    assert tuple(pair.reference for pair in pairs if pair.reference is not None) == reference
    assert tuple(pair.hypothesis for pair in pairs if pair.hypothesis is not None) == hypothesis
    kinds = Counter(pair.kind for pair in pairs)
    expected = count(reference, hypothesis)
    found = (kinds["substitution"], kinds["deletion"], kinds["insertion"])
    assert found == (expected.substitutions, expected.deletions, expected.insertions)


def test_aligns_with_the_closest_reading():
    aligner = Aligner(Normaliser().normalise, CountingSettings())
    aligned = aligner.align("{ Uh / @ } the { cat / mat }", ("the", "mat"))
    assert aligned == (AlignedPair("the", "the"), AlignedPair("mat", "mat"))
    with pytest.raises(InvalidList):
        aligner.align("{ the", ("the",))


def test_aligns_characters_if_they_are_counted():
    aligner = Aligner(Normaliser().normalise, CountingSettings(unit="character"))
    aligned = aligner.align("ab c", ("abd",))
    assert [pair.kind for pair in aligned] == ["correct", "correct", "substitution"]


@given(reference=words, before=words, after=words)
def test_columns_keep_both_alignments(reference, before, after):
    columns = align_three(align_tokens(reference, before), align_tokens(reference, after))
    for index, text in enumerate((reference, before, after)):
        assert tuple(column[index] for column in columns if column[index] is not None) == text
    for column in columns:
        assert any(word is not None for word in column)


def test_insertions_share_columns():
    before, after = align_tokens(("a", "b"), ("a", "x", "b")), align_tokens(("a", "b"), ("a", "y", "z", "b"))
    assert align_three(before, after) == [
        Column("a", "a", "a"), Column(None, "x", "y"), Column(None, None, "z"), Column("b", "b", "b"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="different readings"):
        align_three(before, align_tokens(("a",), ("a",)))
