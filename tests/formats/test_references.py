"""References and speakers by id, from the files people have."""

from __future__ import annotations

import io

import pytest

from rescorer.errors import FormatError
from rescorer.formats.nist.references import read_groups, read_references


def references(text: str, **fields: str) -> dict[str, str]:
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
def test_every_format_says_the_same(text):
    assert references(text) == {"u1": "a b", "u 2": ""}


def test_alternations_in_braces_are_no_json():
    assert references("{ uh / @ } yes (u1)\n") == {"u1": "{ uh / @ } yes"}


def test_further_columns_are_not_read():
    assert references('u1\ta b\t["b"]\n') == {"u1": "a b"}


def test_field_names_can_be_told():
    assert references('{"utt": "u1", "ref": "a"}', id_field="utt", text_field="ref") == {"u1": "a"}


def test_the_same_said_twice_is_fine_and_empty_files_have_no_references():
    assert references("a (u1)\na (u1)\n") == {"u1": "a"}
    assert references("\n") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b\n", "<stream>:1: expected words .id., id<TAB>text or JSON"),
        ("a (u1)\nb\n", "<stream>:2: expected words .id."),
        ("u1\ta\nb\n", "<stream>:2: expected id<TAB>text"),
        ("a (u1)\nb (u1)\n", "<stream>:2: 'u1' is here a second time, and not the same"),
        ('{"id": "u1"}\n', "<stream>:1: reference: expected a string, not nothing"),
        (
            '{"id": "u1", "reference": "a"}\n{"id": 1, "reference": "a"}',
            ":2: id: expected a string, not a num",
        ),
        ('{"id": \n', "<stream>:1: not JSON"),
        ('[{"id": "u1", "reference": "a"},\n\n{]', "<stream>:3: not JSON"),
        ("[1]", "expected an object as element 1, not a number"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text, said):
    with pytest.raises(FormatError, match=said):
        references(text)


def test_a_line_that_is_no_text_is_refused():
    with pytest.raises(FormatError, match=r"<stream>:2: not UTF-8"):
        read_references(io.BytesIO(b"a (u1)\n\xff (u2)\n"))


@pytest.mark.data
def test_real_files(data_dir):
    utterances = data_dir / "nbest" / "read-speech" / "utterances.json"
    assert len(read_references(utterances, text_field="ref")) == 143
    assert read_groups(utterances)["1688-142285-0000"] == "1688"
    librispeech = data_dir / "wer/librispeech-systems/ref/test-clean.biasing_100.tsv.gz"
    assert len(read_references(librispeech)) == 2620
