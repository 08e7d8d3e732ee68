"""Comparison of systems pair by pair."""

from __future__ import annotations

import random

import pytest

from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate import CountingSettings
from rescorer.evaluation.significance import (
    RecognisedText,
    compare_pairwise,
    find_common_places,
    recognise_text,
)
from rescorer.types import Hypothesis, NBestList


def split(text: str) -> tuple[str, ...]:
    return tuple(text.lower().split())


def recognise(reference: str, text: str, **settings) -> RecognisedText:
    nbest = NBestList("u", (Hypothesis("other"), Hypothesis(text)), reference=reference)
    return recognise_text(nbest, 1, split, CountingSettings(**settings))


def corrupt(words: list[str], draw: random.Random, rate: float) -> str:
    return " ".join(word if draw.random() > rate else draw.choice(["x", "x y", ""]) for word in words)


def simulate(*rates: float, n_lists: int = 120) -> dict[str, list[RecognisedText]]:
    """Systems with these error rates, on the same references."""
    draw = random.Random(8)
    references = [[draw.choice("abcdef") for _ in range(12)] for _ in range(n_lists)]
    return {
        f"system {number}": [recognise(" ".join(words), corrupt(words, draw, rate)) for words in references]
        for number, rate in enumerate(rates)
    }


@pytest.mark.parametrize("method", ["levenshtein", "sclite"])
def test_finds_the_places_of_errors(method):
    text = recognise("a b c", "a x c d", method=method)
    assert text.errors.errors == 2
    assert text.reading == ("a", "b", "c")
    assert text.places.tolist() == [0, 0, 0, 1, 0, 0, 1]


def test_marks_leave_errors_without_places():
    text = recognise("a (b) c", "a c", method="sclite", optional_words=True)
    assert (text.errors.errors, text.places) == (0, None)
    plain = recognise("a (b) c", "a (b) x", method="sclite", optional_words=True)
    first, second = find_common_places([text], [plain])
    assert [first[0].tolist(), second[0].tolist()] == [[0], [1]]


def test_different_readings_make_one_segment():
    first, second = recognise("{ a / b c } d", "a x"), recognise("{ a / b c } d", "b c d e")
    assert (first.reading, second.reading) == (("a", "d"), ("b", "c", "d"))
    places = find_common_places([first, first], [second, first])
    assert [row.tolist() for row in places[0]] == [[1], [0, 0, 0, 1, 0]]
    assert [row.tolist() for row in places[1]] == [[1], [0, 0, 0, 1, 0]]


def test_rejects_a_list_without_reference():
    with pytest.raises(InvalidList, match="no reference"):
        recognise_text(NBestList("u", (Hypothesis("a"),)), 0, split, CountingSettings())


def test_tells_a_gain_from_chance():
    comparison = compare_pairwise(simulate(0.3, 0.3, 0.1), draws=500, tests=("sign", "wilcoxon"))
    assert [(pair.baseline, pair.system) for pair in comparison.pairs] == [
        ("system 0", "system 1"), ("system 0", "system 2"), ("system 1", "system 2"),
    ]  # fmt: skip
    assert [pair.verdict for pair in comparison.pairs] == ["not beyond chance", "better", "better"]
    assert (comparison.unit, comparison.n_units, comparison.rank_test_unit) == ("list", 120, "list")
    for pair in comparison.pairs:
        assert set(pair.p_values) == {"bootstrap", "matched_pairs", "sign", "wilcoxon"}
        assert all(pair.corrected[test] >= p_value for test, p_value in pair.p_values.items())
    assert comparison.pairs[0].units_needed > 120
    assert comparison.pairs[1].share_of_better_draws == 1
    reverse = compare_pairwise(dict(reversed(simulate(0.3, 0.1).items())), draws=500)
    assert reverse.pairs[0].verdict == "worse"


def test_draws_groups_and_tests_over_them():
    groups = [f"speaker {number % 8}" for number in range(120)]
    comparison = compare_pairwise(simulate(0.3, 0.1), groups, by_group=True, draws=500, tests=("sign",))
    assert (comparison.unit, comparison.n_units, comparison.rank_test_unit) == ("group", 8, "group")
    assert comparison.pairs[0].rank_tests["sign"].better == 8
    assert "8 groups" in comparison.warning
    by_list = compare_pairwise(simulate(0.3, 0.1), groups, draws=500)
    assert (by_list.unit, by_list.rank_test_unit) == ("list", "group")
