"""Phrases in place of words: case, punctuation, white space and times stay."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.candidates import _after_word, _before_word, replace_fields, replace_words
from rescorer.types import Generated


@pytest.mark.parametrize(
    ("text", "start", "end", "phrase", "expected"),
    [
        ("call mister rust please", 2, 3, "Rusk", "call mister Rusk please"),
        ('Call "mister  rust, please.', 1, 3, "Mr. Rusk", 'Call "Mr. Rusk, please.'),
        ("Rust is here", 0, 1, "rusk", "Rusk is here"),
        ("“Rust is here", 0, 1, "rusk", "“Rusk is here"),
        ("rust is here", 0, 1, "Rusk", "Rusk is here"),
        ("CALL RUST!", 1, 2, "Rusk", "CALL RUSK!"),
        ("did he say what", 3, 4, "Yahoo!", "did he say Yahoo!"),
        ("did he say what!", 3, 4, "Yahoo!", "did he say Yahoo!"),
        (" a\tb  c ", 1, 2, " x  y ", " a\tx y  c "),
        ("... what", 0, 1, "x", "...x what"),
    ],
)
def test_what_surrounds_the_span_stays(text, start, end, phrase, expected):
    assert replace_words(text, start, end, phrase) == expected


tokens = st.lists(st.text("abC.,'\"é9", min_size=1, max_size=4), min_size=1, max_size=6)


@given(tokens, st.data())
def test_other_words_are_untouched(words, data):
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    new = replace_words("  ".join(words), start, end, "x y").split()
    assert new[:start] == words[:start]
    assert new[len(new) - (len(words) - end) :] == words[end:]
    assert len(new) == start + 2 + len(words) - end


def entry(word, start_s, duration_s, **more):
    return {"word": word, "start_s": start_s, "duration_s": duration_s, **more}


ENTRIES = [
    entry("in", 0.0, 0.2),
    entry("new", 0.3, 0.3, confidence=0.5),
    entry("yolk,", 0.6, 0.6),
    entry("city", 2, 1),
]
MADE = Generated(0, 1, 3, "new yolk,", "New York", 0.3, 6)
SOURCE, TEXT = "in new yolk, city", "in New York, city"


def test_new_words_share_the_time_of_the_span_by_letters():
    fields = {"words": ENTRIES, "id": 7}
    new = replace_fields(fields, SOURCE, TEXT, MADE)
    assert new == {
        "id": 7,
        "words": [
            ENTRIES[0],
            entry("New", 0.3, 0.3375),
            entry("York,", 0.6375, 0.5625),
            ENTRIES[3],
        ],
    }
    assert fields["words"] is ENTRIES


@pytest.mark.parametrize(
    "words",
    [
        None,
        "in new yolk, city",
        ENTRIES[:3],
        [*ENTRIES[:3], entry("town", 2, 1)],
        [ENTRIES[0], {"word": "new"}, *ENTRIES[2:]],
        [ENTRIES[0], entry("new", -1, 1), *ENTRIES[2:]],
        [ENTRIES[0], entry("new", 5, 1), *ENTRIES[2:]],
        [ENTRIES[0], entry("new", 0, 1), entry("yolk,", 1e308, 1e308), ENTRIES[3]],
        ["in", "new", "yolk,", "city"],
    ],
)
def test_times_that_do_not_fit_are_left_out(words):
    assert replace_fields({"words": words, "id": 7}, SOURCE, TEXT, MADE) == {"id": 7}


def test_fields_without_times_are_those_of_the_source():
    fields = {"id": 7}
    assert replace_fields(fields, SOURCE, TEXT, MADE) is fields


@given(st.text("a_-.é1'…", max_size=7))
def test_edges_of_a_word_are_those_of_a_plain_expression(token):
    before, _, after = re.match(r"^(\W*)(.*?)(\W*)$", token, re.DOTALL).groups()  # quadratic in long tokens
    assert (token[: _before_word(token)], token[_after_word(token) :]) == (before, after)
