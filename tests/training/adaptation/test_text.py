"""Dividing the text of a domain into parts to learn from and to hold out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.text import Normaliser
from rescorer_training.adaptation import (
    MAX_BLOCK_SENTENCES,
    MAX_HELD_OUT_SENTENCES,
    MIN_HELD_OUT_SENTENCES,
    check_known,
    choose_held_out,
    cut_into_blocks,
    divide_text,
)
from tests.support.domain_text import write_domain_text


@given(st.integers(120, 3000), st.integers(0, 5))
def test_held_out_halves_are_disjoint_and_a_tenth(n_sentences, seed):
    fitting, judging = choose_held_out(n_sentences, seed)
    held_out = [*fitting, *judging]
    assert len(held_out) == len(set(held_out))
    assert set(held_out) < set(range(n_sentences))
    assert min(len(fitting), len(judging)) > 0
    wanted = max(n_sentences / 10, MIN_HELD_OUT_SENTENCES)
    assert abs(len(held_out) - wanted) <= 2 * MAX_BLOCK_SENTENCES
    assert choose_held_out(n_sentences, seed) == (fitting, judging)


def test_held_out_part_of_a_long_text_is_limited():
    fitting, judging = choose_held_out(1_000_000, 1)
    assert len(fitting) + len(judging) == MAX_HELD_OUT_SENTENCES
    assert set(fitting) != set(choose_held_out(1_000_000, 2)[0])


@given(st.integers(20, 3000))
def test_blocks_cover_the_text_in_order(n_sentences):
    blocks = cut_into_blocks(n_sentences)
    assert [i for block in blocks for i in block] == list(range(n_sentences))
    assert len(blocks) >= 20
    assert max(map(len, blocks)) <= MAX_BLOCK_SENTENCES


def test_parts_make_up_the_text(tmp_path):
    path = write_domain_text(tmp_path / "domain.txt")
    text = divide_text(path, None, Normaliser(), 1, tmp_path)
    parts = [part.read_text().splitlines() for part in (text.train, text.fitting, text.judging)]
    assert sorted(line for part in parts for line in part) == sorted(path.read_text().splitlines())
    assert text.n_sentences == len(parts[0]) == 216
    assert text.n_words == sum(len(line.split()) for line in parts[0])
    assert text.held_out_name == "domain.txt"


def test_validation_text_is_held_out_as_a_whole(tmp_path):
    path = write_domain_text(tmp_path / "domain.txt")
    valid = tmp_path / "valid.txt"
    valid.write_text("".join(f"the cat number {i}\n\n" for i in range(40)))
    text = divide_text(path, valid, Normaliser(), 1, tmp_path)
    assert text.n_sentences == 240
    assert len(text.fitting.read_text().splitlines()) == 20
    assert len(text.judging.read_text().splitlines()) == 20
    assert text.held_out_name == "valid.txt"


@pytest.mark.parametrize(
    ("n_sentences", "n_valid", "message"),
    [
        (
            0,
            None,
            "domain.txt has 0 sentences with words; expected at least 120 .100 to learn from and 20 held out",
        ),
        (119, None, "119 sentences"),
        (99, 20, "domain.txt has 99 sentences with words; expected at least 100 .to learn from"),
        (100, 19, "valid.txt has 19 sentences with words; expected at least 20 .held out"),
    ],
)
def test_rejects_short_texts(tmp_path, n_sentences, n_valid, message):
    path = write_domain_text(tmp_path / "domain.txt", n_sentences)
    path.write_text(path.read_text() + "...\n\n")  # lines without words do not count
    valid = None if n_valid is None else write_domain_text(tmp_path / "valid.txt", n_valid)
    with pytest.raises(ConfigError, match=message):
        divide_text(path, valid, Normaliser(), 1, tmp_path)


def test_rejects_the_training_text_as_validation_text(tmp_path):
    path = write_domain_text(tmp_path / "domain.txt")
    with pytest.raises(ConfigError, match="is the text to learn from"):
        divide_text(path, path, Normaliser(), 1, tmp_path)


def test_rejects_a_text_of_unknown_words(tmp_path):
    path = write_domain_text(tmp_path / "domain.txt")
    text = divide_text(path, None, Normaliser(), 1, tmp_path)
    known = {"the", "cat", "dog", "mat", "sat"}
    check_known(text, known, "tiny/1")
    with pytest.raises(ConfigError, match=r"\d\d % of its words are unknown to tiny/1 .*'the'"):
        check_known(text, {"cat", "dog"}, "tiny/1")
