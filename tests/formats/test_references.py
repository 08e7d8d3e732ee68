"""References and speakers by utterance id, from all supported formats."""

from __future__ import annotations

import io

import pytest

from rescorer.errors import FormatError
from rescorer.formats.nist import read_groups, read_references


def parse_references(text: str, **fields: str) -> dict[str, str]:
    return read_references(io.BytesIO(text.encode()), **fields)


@pytest.mark.parametrize(
    "text",
    [
        "a b (u1)\n\n (u 2)\n",
        "u1\ta b\nu 2\t\n",
        '{"id": "u1", "reference": "a b"}\n{"id": "u 2", "reference": ""}\n',
        '[{"id": "u1",\n"reference": "a b"},\n{"id": "u 2", "reference": ""}]',
    ],
)
def test_all_formats_give_the_same_references(text):
    assert parse_references(text) == {"u1": "a b", "u 2": ""}


def test_reads_the_text_file_of_kaldi():
    """Also lines without words, several spaces, and a word in parentheses at the end of the first line."""
    assert parse_references("u1 a b\nu2\nu3  c  d \n") == {"u1": "a b", "u2": "", "u3": "c  d"}
    assert parse_references("u1 a (b)\nu2 c\nu3 d\n") == {"u1": "a (b)", "u2": "c", "u3": "d"}


def test_reads_the_speakers_of_kaldi():
    assert read_groups(io.BytesIO(b"u1 s1\nu2\ts2\n")) == {"u1": "s1", "u2": "s2"}
    with pytest.raises(FormatError, match="<stream>:2: expected id speaker"):
        read_groups(io.BytesIO(b"u1 s1\nu2\n"))


def test_does_not_mistake_alternations_for_json():
    assert parse_references("{ uh / @ } yes (u1)\n") == {"u1": "{ uh / @ } yes"}


def test_ignores_further_columns():
    assert parse_references('u1\ta b\t["b"]\n') == {"u1": "a b"}


def test_accepts_other_field_names():
    assert parse_references('{"id": "u1", "ref": "a"}', text_field="ref") == {"u1": "a"}


def test_accepts_equal_duplicates_and_empty_files():
    assert parse_references("a (u1)\na (u1)\n") == {"u1": "a"}
    assert parse_references("\n") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the cat sat\nthe mat\n", "<stream>:2: duplicate id 'the' .*does each line start with an id"),
        ("a (u1)\nb\n", "<stream>:2: expected words .id."),
        ("u1\ta\nb\n", "<stream>:2: expected id<TAB>text"),
        ("a (u1)\nb (u1)\n", "<stream>:2: duplicate id 'u1' with a different value"),
        ('{"id": "u1"}\n', "<stream>:1: reference: expected a string, got nothing"),
        (
            '{"id": "u1", "reference": "a"}\n{"id": 1.5, "reference": "a"}',
            ":2: id: expected a string, got a number",
        ),
        ('{"id": \n', "<stream>:1: not JSON"),
        ('[{"id": "u1", "reference": "a"},\n\n{]', "<stream>:3: not JSON"),
        ("[1]", "<stream>: element 1: expected an object, got a number"),
    ],
)
def test_rejects_invalid_files_with_line(text, message):
    with pytest.raises(FormatError, match=message):
        parse_references(text)


def test_rejects_lines_that_are_not_utf8():
    with pytest.raises(FormatError, match=r"<stream>:2: not UTF-8"):
        read_references(io.BytesIO(b"a (u1)\n\xff (u2)\n"))


@pytest.mark.data
def test_reads_published_references(data_dir):
    utterances = data_dir / "nbest" / "read-speech" / "utterances.json"
    assert len(read_references(utterances, text_field="ref")) == 143
    assert read_groups(utterances)["1688-142285-0000"] == "1688"
    librispeech = data_dir / "wer/librispeech-systems/ref/test-clean.biasing_100.tsv.gz"
    assert len(read_references(librispeech)) == 2620
