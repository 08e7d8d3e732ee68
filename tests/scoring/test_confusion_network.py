"""Confusion networks, against a plain alignment; their consensus and times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import LimitExceeded, consensus
from rescorer.consensus import COST_SCALE, EMPTY, SLOT_CELLS, ConfusionNetwork, build_confusion_network
from tests.support.decision_twins import plain_network

WORDS = st.lists(st.sampled_from("abcd"), max_size=6).map(tuple)
WEIGHTED = st.lists(st.tuples(WORDS, st.integers(1, 8)), min_size=1, max_size=8)


@given(WEIGHTED)
def test_agrees_with_plain_alignment(sequences):
    words, weights = zip(*sequences, strict=True)
    network = ConfusionNetwork()
    for sequence, weight in sequences:
        network.add(sequence, weight)
    expected = plain_network(words, weights, COST_SCALE)
    assert [list(slot.items()) for slot in network.posteriors()] == [list(slot.items()) for slot in expected]


@given(WEIGHTED)
def test_slots_sum_to_one_and_every_sequence_is_a_path(sequences):
    network = ConfusionNetwork()
    for sequence, weight in sequences:
        network.add(sequence, weight)
    slots = network.posteriors()
    assert [sum(slot.values()) for slot in slots] == pytest.approx([1.0] * len(slots))
    for sequence, _ in sequences:
        ends = {0}  # numbers of words of the sequence that the slots so far can have
        for slot in slots:
            ends = {end + (word != EMPTY) for end in ends for word in slot if is_next(word, sequence, end)}
        assert len(sequence) in ends


def is_next(word: str, sequence: tuple[str, ...], end: int) -> bool:
    return word == EMPTY or (end < len(sequence) and sequence[end] == word)


@given(WORDS, st.floats(1e-6, 1e6), st.integers(1, 3))
def test_a_single_text_is_its_own_consensus(words, weight, copies):
    network = build_confusion_network([words] * copies, [weight] * copies)
    assert tuple(word.word for word in network.consensus()) == words
    assert [word.posterior for word in network.consensus()] == pytest.approx([1.0] * len(words))


def test_the_consensus_may_be_new_text():
    hypotheses = [("the", "cat", "sat"), ("the", "hat", "sad"), ("a", "cat", "sad")]
    network = build_confusion_network(hypotheses, [0.4, 0.3, 0.3])
    consensus = network.consensus()
    assert [word.word for word in consensus] == ["the", "cat", "sad"]
    assert [word.posterior for word in consensus] == pytest.approx([0.7, 0.7, 0.6])
    expected = ({"the": 0.7, "a": 0.3}, {"cat": 0.7, "hat": 0.3}, {"sat": 0.4, "sad": 0.6})
    assert network.posteriors() == list(map(pytest.approx, expected))


def test_words_that_most_hypotheses_lack_are_left_out():
    network = build_confusion_network([("uh", "yes"), ("yes",), ("yes", "sir")], [0.4, 0.35, 0.25])
    assert [slot.get(EMPTY, 0.0) for slot in network.posteriors()] == pytest.approx([0.6, 0.0, 0.75])
    assert [word.word for word in network.consensus()] == ["yes"]


def test_ties_go_to_the_word_that_came_first():
    network = build_confusion_network([("a", "c"), ("b",)], [0.50001, 0.49999])
    assert [word.word for word in network.consensus()] == ["a", "c"]
    reverse = build_confusion_network([("b",), ("a", "c")], [0.49999, 0.50001])
    assert [word.word for word in reverse.consensus()] == ["b"]


def test_no_words_and_no_hypotheses_have_an_empty_consensus():
    assert build_confusion_network([(), ()], [0.5, 0.5]).consensus() == ()
    assert ConfusionNetwork().consensus() == ()


def test_hypotheses_without_probability_take_no_part():
    assert len(build_confusion_network([("a",), ("b", "c")], [1.0, 1e-12]).posteriors()) == 1


def test_times_are_weighted_means_over_the_sequences_that_have_the_word():
    spans = [((0.0, 1.0), (1.0, 2.0)), ((0.3, 1.6), (1.6, 2.0)), None, ((9.0, 9.5),)]
    words = [("the", "cat"), ("the", "hat"), ("the", "cat"), ("a",)]
    consensus = build_confusion_network(words, [0.4, 0.2, 0.3, 0.1], spans).consensus()
    assert [word.word for word in consensus] == ["the", "cat"]
    assert (consensus[0].start_s, consensus[0].duration_s) == pytest.approx((0.1, 1.1))
    assert (consensus[1].start_s, consensus[1].duration_s) == pytest.approx((1.0, 1.0))
    assert build_confusion_network(words, [0.4, 0.2, 0.3, 0.1]).consensus()[0].start_s is None


def test_refuses_networks_that_would_take_too_long(monkeypatch):
    network = ConfusionNetwork()
    network.add(("a",) * 10, 1.0)
    monkeypatch.setattr(consensus, "MAX_TABLE_CELLS", 100)
    with pytest.raises(LimitExceeded, match="compares more than 100 pairs of words and slots for one"):
        network.add(("b",) * 10, 1.0)
    assert network.posteriors() == [{"a": 1.0}] * 10
    monkeypatch.setattr(consensus, "MAX_CELLS", (2 + SLOT_CELLS) * 11)
    network.add(("a",), 1.0)
    with pytest.raises(LimitExceeded, match="or 572 for all of them"):
        network.add(("a",), 1.0)
