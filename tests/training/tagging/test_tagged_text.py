"""Tagged text: its two layouts, what is refused, and how its words are read."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError
from rescorer.text import Normaliser
from rescorer_training.tagged_text import (
    LAYOUTS,
    TaggedSentence,
    format_tagged,
    normalise_tagged,
    read_tagged,
    read_word,
)

SENTENCES = [
    TaggedSentence(("The", "1/2", "sea", "."), ("DT", "CD", "NN", ".")),
    TaggedSentence(("calm",), ("JJ",)),
]


@pytest.mark.parametrize(
    "text",
    [
        "The/DT 1/2/CD sea/NN ./.\n\ncalm/JJ",
        "The DT\n1/2 CD\nsea\tNN\n. .\n\n\ncalm JJ\n",
        "\ufeffThe\tDT\r\n1/2\tCD\r\nsea\tNN\r\n.\t.\r\n\r\ncalm\tJJ\r\n\r\n",
    ],
)
def test_both_layouts_are_detected(tmp_path, text):
    (tmp_path / "plain").write_text(text)
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode()))
    assert read_tagged(tmp_path / "plain") == read_tagged(tmp_path / "packed") == SENTENCES


WORD = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=4)
TAG = WORD.filter(lambda tag: "/" not in tag)


@given(st.lists(st.lists(st.tuples(WORD, TAG), min_size=1, max_size=4), min_size=1, max_size=3))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_is_read(tmp_path_factory, layout, pairs):
    sentences = [TaggedSentence(*map(tuple, zip(*part, strict=True))) for part in pairs]
    file = tmp_path_factory.getbasetemp() / "tagged"
    file.write_text(
        "".join(format_tagged(one.words, one.tags, layout) for one in sentences), encoding="utf-8"
    )
    assert read_tagged(file, layout) == sentences


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a/DT b/NN\n\nthe sea/NN\n", ":3: 'the' has no tag; expected word/TAG for every word"),
        ("a/DT /NN\n", ":1: '/NN' has no tag"),
        ("a DT\nsea NN x\n", ":2: 3 columns in 'sea NN x'; expected a word and its tag"),
        ("1 the DT _\n", ":1: 4 columns, or a sentence without tags; expected word/TAG …, or two columns"),
        ("a DT\nsea N\u200bN\n", r":2: tag 'N\u200bN'; expected 1 to 200 printable characters"),
        ("\n\n", ": no words; expected words with tags"),
        ("a/DT\n\x00/NN\n", ":2: "),
    ],
)
def test_names_the_line_of_what_is_refused(tmp_path, text, message):
    (tmp_path / "tagged").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError) as raised:
        read_tagged(tmp_path / "tagged")
    assert f"{tmp_path / 'tagged'}{message}" in str(raised.value)


def test_refuses_an_unknown_layout_and_takes_a_given_one(tmp_path):
    (tmp_path / "tagged").write_text("a/b c/d\n")
    assert read_tagged(tmp_path / "tagged", "columns") == [TaggedSentence(("a/b",), ("c/d",))]
    with pytest.raises(ConfigError, match="layout is 'rows'; expected one of words, columns"):
        read_tagged(tmp_path / "tagged", "rows")


def test_taggers_read_one_word_and_language_models_what_they_know():
    assert [read_word(word, Normaliser()) for word in ("The", ".", "left-over")] == ["the", ".", "left-over"]
    sentence = TaggedSentence(("The", "left-over", "."), ("DT", "JJ", "."))
    (found,) = normalise_tagged([sentence], Normaliser())
    assert found == [("the", "DT"), ("left", "JJ"), ("over", "JJ")]
