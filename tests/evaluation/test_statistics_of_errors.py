"""Confusions, changes and parts against counts by hand, and against the total number of errors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.error_analysis import (
    Part,
    align_tokens,
    choose_depths,
    count_changes,
    count_confusions,
    divide_by_frequency,
    divide_by_known,
    divide_lists,
    find_unknown_words,
    oracle_by_depth,
)
from rescorer.evaluation.error_rate import WordErrors, count_errors
from rescorer.text import Normaliser, NormaliserSettings

words = st.lists(st.sampled_from("abc"), max_size=7).map(tuple)
triples = st.lists(st.tuples(words, words, words), max_size=6)


def align_pairs(texts):
    return [(align_tokens(reference, a), align_tokens(reference, b)) for reference, a, b in texts]


def sum_errors(pairs):
    return sum((count_errors(*pair) for pair in pairs), WordErrors.zero())


@given(triples)
def test_confusions_add_up_to_the_errors(texts):
    found = count_confusions(align_tokens(reference, heard) for reference, heard, _ in texts)
    total = sum_errors((reference, heard) for reference, heard, _ in texts)
    assert found.substitutions.total() == total.substitutions
    assert (found.deletions.total(), found.insertions.total()) == (total.deletions, total.insertions)


@given(triples)
def test_changes_explain_the_difference_in_errors(texts):
    changes = count_changes(align_pairs(texts))
    saved = changes.fixed.total() - changes.broken.total()
    saved += changes.insertions_removed.total() - changes.insertions_added.total()
    before = sum_errors((reference, a) for reference, a, _ in texts)
    after = sum_errors((reference, b) for reference, _, b in texts)
    assert saved == before.errors - after.errors


def test_changes_of_different_readings_compare_common_words():
    changes = count_changes([(align_tokens(("uh", "cat"), ("uh", "mat")), align_tokens(("cat",), ("cat",)))])
    assert (dict(changes.fixed), dict(changes.broken)) == ({"cat": 1}, {})


def test_words_of_equal_count_stand_in_the_order_of_the_text():
    words = tuple("hgfedcba")
    changes = count_changes([(align_tokens(words, ("x",) * 8), align_tokens(words, words))])
    assert tuple(word for word, _ in changes.fixed.most_common()) == words


@given(triples)
def test_parts_by_word_add_up(texts):
    pairs = align_pairs(texts)
    before = sum_errors((reference, a) for reference, a, _ in texts)
    for parts in (divide_by_frequency(pairs), divide_by_known(pairs, {"a"})):
        assert sum(part.reference_words for part in parts) == before.reference_words
        assert sum(part.errors_before for part in parts) == before.substitutions + before.deletions


def test_parts_by_hand():
    pairs = align_pairs([(("a", "a", "b"), ("a", "x", "b"), ("a", "a", "x"))])
    assert divide_by_frequency(pairs) == [Part("1", 1, 1, 0, 1), Part("2–3", 2, 2, 1, 0)]
    assert divide_by_known(pairs, {"b"}) == [Part("known", 2, 2, 1, 0), Part("unknown", 1, 1, 0, 1)]
    assert divide_lists([(3, 3, 1, 1), (12, 12, 4, 2), (5, 5, 0, 1)], (5, 10)) == [
        Part("up to 5", 2, 8, 1, 2), Part("11+", 1, 12, 4, 2),
    ]  # fmt: skip
    assert Part("none", 1, 0, 1, 1).rate(1) is None


def test_oracle_by_depth():
    lists = [[count_errors(("a",), text) for text in (("b",), ("c", "c"), ("a",))]]
    lists.append([count_errors(("a",), ("b", "b"))])
    assert {depth: counts.errors for depth, counts in oracle_by_depth(lists).items()} == {1: 3, 2: 3, 3: 2}
    assert oracle_by_depth([]) == {}
    assert choose_depths(1) == [1]


def test_words_as_counted_are_unknown_if_models_do_not_know_what_they_read():
    read, counted = Normaliser(NormaliserSettings.first_rules()).normalise, Normaliser().normalise
    texts = ["It cost $5, we_did C++ - İstanbul 3,5", "نعم،لا"]
    found = find_unknown_words(texts, {"5", "did", "35", "نعملا"}, read, counted)
    assert found == {"$5", "did", "3,5"}
