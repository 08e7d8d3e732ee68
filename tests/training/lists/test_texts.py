"""Check the choice of sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescorer.errors import ConfigError
from rescorer.text import Normaliser
from rescorer.types import Hypothesis, NBestList
from rescorer_training.lists.patterns import Choice, choose_sentences, reference_words

LINES = ["One two three.", "one, two three", "two words", "four five six", "in 1815 he died", "a b c d e f g"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*LINES, *(f"sentence {chr(97 + i)} here" for i in range(20))]))
    return path


def test_chooses_distinct_sentences_without_digits_of_the_given_lengths(text: Path) -> None:
    chosen = choose_sentences([text], Normaliser(), Choice(100, 1, 3, 6), set())
    texts = [sentence.text for sentence in chosen]
    assert sorted(texts) == sorted(
        ["one two three", "four five six", *(f"sentence {chr(97 + i)} here" for i in range(20))]
    )
    assert [sentence.key for sentence in chosen] == sorted(sentence.key for sentence in chosen)


def test_excludes_references_after_normalisation(text: Path) -> None:
    nbest = NBestList("x", (Hypothesis("x"),), reference="Four, five SIX!")
    excluded = reference_words([nbest, NBestList("y", (Hypothesis("y"),))], Normaliser())
    assert excluded == {("four", "five", "six")}
    chosen = choose_sentences([text], Normaliser(), Choice(100, 1, 3, 6), excluded)
    assert "four five six" not in [sentence.text for sentence in chosen]
    assert len(chosen) == 21


def test_larger_choices_contain_smaller_ones_and_seeds_differ(text: Path) -> None:
    def choose(n: int, seed: int) -> list:
        return choose_sentences([text], Normaliser(), Choice(n, seed, 3, 6), set())

    assert choose(12, 1)[:5] == choose(5, 1)
    assert choose(5, 1) != choose(5, 2)
    assert choose(5, 1)[0].random().random() == choose(9, 1)[0].random().random()


def test_rejects_texts_without_fitting_sentences(text: Path) -> None:
    with pytest.raises(ConfigError, match="no sentence of 40 to 50 words"):
        choose_sentences([text], Normaliser(), Choice(5, 1, 40, 50), set())
