"""Check pronunciations and the distances between them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import FormatError
from rescorer_training.lists.patterns import PhoneCosts, Pronunciations, phone_numbers

DICTIONARY = [";;; comment", "Pear P EH1 R", "pear(2) P AA R", "bear B EH R", "tree T R IY", "eight EY T"]


def test_reads_first_pronunciations_without_stress() -> None:
    pronunciations = Pronunciations(DICTIONARY)
    names = [pronunciations.phones[number] for number in phone_numbers(pronunciations["pear"])]
    assert names == ["P", "EH", "R"]
    assert "pear" in pronunciations
    assert "pearl" not in pronunciations
    assert pronunciations["pearl"] == pronunciations["pear"]  # spelled most like it


def test_skips_comments_and_blank_lines() -> None:
    pronunciations = Pronunciations([";;; words", "", "  ", "a AH"])
    assert pronunciations.phones == ["AH"]


def test_rejects_files_that_are_no_dictionaries(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("one\ntwo\n")
    with pytest.raises(FormatError, match="expected lines of a word and its phones"):
        Pronunciations.read(path)


def distance(costs: PhoneCosts, right: str, heard: str) -> float:
    """The recursive definition of the distance."""
    source, target = phone_numbers(right), phone_numbers(heard)

    @cache
    def cost(i: int, j: int) -> float:
        options = [0.0] if i == j == 0 else []
        options += [cost(i - 1, j) + costs.lose[source[i - 1]]] if i else []
        options += [cost(i, j - 1) + costs.add] if j else []
        options += [cost(i - 1, j - 1) + costs.replace[source[i - 1], target[j - 1]]] if i and j else []
        return min(options)

    return float(cost(len(source), len(target)))


PHONES = list("ABCDE")
STRINGS = st.text(alphabet=[chr(0x100 + n) for n in range(len(PHONES))], min_size=0, max_size=6)


@given(
    right=STRINGS,
    heard=st.lists(STRINGS, min_size=1, max_size=5),
    learned=st.lists(st.tuples(STRINGS, STRINGS)),
)
def test_distances_agree_with_their_definition(right: str, heard: list[str], learned: list) -> None:
    costs = PhoneCosts(PHONES, [(a, b, 1.0) for a, b in learned])
    expected = [distance(costs, right, other) for other in heard]
    assert costs.distances(right, heard) == pytest.approx(expected)


def test_learned_confusions_become_cheap_and_classes_matter() -> None:
    pronunciations = Pronunciations(DICTIONARY)
    phones = pronunciations.phones
    p, b, r = (phones.index(name) for name in "PBR")
    before = PhoneCosts(phones)
    assert before.replace[p, p] < before.replace[p, b] < before.replace[p, r]
    after = PhoneCosts(phones, [(pronunciations["pear"], pronunciations["bear"], 50.0)])
    assert after.replace[p, b] < after.replace[p, p]
    mass = np.exp(-after.replace).sum(axis=1) + np.exp(-after.lose)
    assert mass == pytest.approx(np.ones(len(phones)))
    assert math.exp(-after.add) < 1
