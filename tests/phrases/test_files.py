"""Files of phrases: one per line, as text or as a JSON object."""

from __future__ import annotations

import pytest

from rescorer import FormatError, Phrase
from rescorer.phrases import parse_phrase_file


def test_lines_are_phrases():
    data = b"""\xef\xbb\xbf# people
Ada Lovelace

  Charles Babbage\r
{"text": "St. Petersburg", "weight": 2, "spellings": ["saint petersburg"]}
"""
    assert parse_phrase_file(data, "f") == (
        Phrase("Ada Lovelace"),
        Phrase("Charles Babbage"),
        Phrase("St. Petersburg", 2.0, ("saint petersburg",)),
    )
    assert parse_phrase_file(b"", "f") == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\n\xff\n", "f:2: not UTF-8 at byte 0"),
        (b'{"text": "a"', "f:1: cannot be read as JSON"),
        (b'{"text": "a", "weight": "x"}', "f:1: weight: expected a number"),
        (b'{"text": "a", "boost": 1}', "f:1: unknown key 'boost'; expected text, weight, spellings"),
        (b'{"weight": 1}', "f:1: text: expected a string, got nothing"),
        (b'{"a":' * 100_000, "f:1: cannot be read as JSON"),
    ],
)
def test_wrong_lines_are_named(data, message):
    with pytest.raises(FormatError) as error:
        parse_phrase_file(data, "f")
    assert message in str(error.value)
