"""Columns of several alignments with the same reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.error_analysis import align_tokens
from rescorer.evaluation.report.build import make_slots
from rescorer.evaluation.report.data import AlignedWord, Reading

WORDS = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)


def read(reference: tuple[str, ...], hypothesis: tuple[str, ...]) -> Reading:
    pairs = align_tokens(reference, hypothesis)
    words = tuple(AlignedWord(pair.kind, pair.reference or "", pair.hypothesis or "") for pair in pairs)
    return Reading(("system",), words, sum(word.kind != "correct" for word in words))


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_slots_contain_the_reference_and_every_reading(reference, hypotheses):
    slots = make_slots([read(reference, hypothesis) for hypothesis in hypotheses])
    assert tuple(slot.reference for slot in slots if slot.reference) == reference
    for row, hypothesis in enumerate(hypotheses):
        cells = [slot.cells[row] for slot in slots]
        assert tuple(word for _, text in cells for word in text.split()) == hypothesis


def test_insertions_get_a_column_of_their_own():
    slots = make_slots([read(("a", "b"), ("a", "x", "y", "b")), read(("a", "b"), ("a",))])
    assert [slot.reference for slot in slots] == ["a", "", "b"]
    assert slots[1].cells == (("insertion", "x y"), ("correct", ""))
    assert slots[2].cells == (("correct", "b"), ("deletion", ""))
