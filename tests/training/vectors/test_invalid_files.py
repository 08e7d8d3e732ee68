"""Files that are not word vectors: each is refused by a message that names the place."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import FormatError
from rescorer_training.vectors.files import MAX_WORD_BYTES, VectorFormat, read_vectors, write_vectors
from tests.support.random_vectors import random_vectors, word_vectors

ONE = struct.pack("<2f", 1, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "v: no words; expected at least one"),
        (b"\n \n", "v: no words"),
        (b"a 1 2\nb 1 2 3\n", "v:2: 3 values; expected 2"),
        (b"a 1 2\nb 1\n", "v:2: 1 values; expected 2"),
        (b"a 1 2\nb 1 x\n", r"v:2: 'b': could not convert string to float: 'x'"),
        (b"a 1 2\n\nb 1 2\na 3 4\n", "v:4: 'a' occurs twice, first in line 1"),
        (b"a 1 2\nb nan 2\n", "v:2: 'b' has a value that is not finite"),
        (b"a 1 2\nb 1e39 2\n", "v:2: 'b' has a value that is not finite"),
        (b"a\nb\n", "v:1: 'a' is not a word and its values"),
        (b"a 1 2\n\xff 1 2\n", "v:2: not UTF-8"),
        (b"3 2\na 1 2\nb 1 2\n", "v: the header announces 3 words, but the file has 2: it is incomplete"),
        (b"1 2\na 1 2\nb 1 2\n", "v: the header announces 1 words, but the file has 2"),
        (b"0 2\n", "v:1: the header announces 0 words"),
        (b"2 0\na\nb\n", "v:1: the header announces 0 values per word"),
        (b"2 100000000\na " + ONE, "v:1: the header announces 100000000 values per word; expected 1 to"),
        (b"2 2\na " + ONE + b"\nb " + ONE[:7], "v: the file ends at byte 24, in word 2 of the 2"),
        (b"2 2\na " + ONE, "v: the file ends at byte 14, in word 2 of the 2"),
        (b"1 2\na " + ONE + b"\nb " + ONE, "but there are more bytes after them, from byte"),
        (b"2 2\na " + ONE + b"\na " + ONE, "v: word 2: 'a' occurs twice, first in word 1"),
        (b"1 2\na " + struct.pack("<2f", 1, float("inf")), "v: word 1: 'a' has a value that is not finite"),
        (b"1 2\n\xff " + ONE, r"v: word 1, from byte 5: b'\\xff' is not a word in UTF-8"),
        (b"1 2\n " + ONE, "v: word 1, from byte 5: b'' is not a word"),
        (b"1 2\n" + b"x" * (MAX_WORD_BYTES + 9), "word 1, from byte 5: no blank within"),
        (gzip.compress(b"a 1 2\nb 1 2\n", mtime=0)[:-9], "damaged gzip data"),
    ],
)
def test_names_place_and_reason(tmp_path, content, message):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        read_vectors(tmp_path / "v")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"word\n", b"a 1 2\n", b"x" * 100])
@pytest.mark.parametrize("format", [VectorFormat.WORD2VEC, VectorFormat.WORD2VEC_BINARY])
def test_explains_a_missing_header(tmp_path, content, format):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(FormatError, match=r"v:1: .*number of words and of values per word"):
        read_vectors(tmp_path / "v", format)


def test_refuses_folders_and_missing_files(tmp_path):
    with pytest.raises(FormatError, match="there is no such file"):
        read_vectors(tmp_path / "none")
    with pytest.raises(FormatError, match="is not a file"):
        read_vectors(tmp_path)


@pytest.mark.parametrize("values", [b"", b"\x00" * 100])
def test_an_absurd_header_does_not_reserve_memory(tmp_path, values):
    (tmp_path / "v").write_bytes(b"999999999999999 65536\nword " + values)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="the file ends at byte"):
            read_vectors(tmp_path / "v")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(content=st.binary(max_size=60), header=st.sampled_from([b"", b"1 1\n", b"2 3\n"]))
@pytest.mark.parametrize("format", [None, *VectorFormat])
def test_any_bytes_are_read_or_refused(tmp_path_factory, format, content, header):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(header + content)
    try:
        vectors = read_vectors(path, format)
    except FormatError:
        return
    assert len(vectors) >= 1


@pytest.mark.parametrize("format", [VectorFormat.WORD2VEC, VectorFormat.WORD2VEC_BINARY])
@given(data=st.data(), vectors=word_vectors())
def test_a_truncated_file_is_refused(tmp_path_factory, format, data, vectors):
    path = tmp_path_factory.getbasetemp() / "cut"
    write_vectors(path, vectors, format)
    whole = path.read_bytes()
    last = len(whole) - (4 if format is VectorFormat.WORD2VEC_BINARY else len(whole.splitlines()[-1]))
    path.write_bytes(whole[: data.draw(st.integers(0, last - 2))])
    with pytest.raises(FormatError):
        read_vectors(path, format)


@pytest.mark.parametrize(
    ("word", "format", "message"),
    [
        ("", VectorFormat.GLOVE, "is empty"),
        ("a\nb", VectorFormat.GLOVE, "is empty, or has a line end"),
        ("a ", VectorFormat.GLOVE, "blank at its end"),
        ("at 5", VectorFormat.GLOVE, "has a number after a blank"),
        ("\ud800", VectorFormat.GLOVE, "not valid Unicode"),
        (". .", VectorFormat.WORD2VEC, "has a blank, which word2vec's formats cannot hold"),
        (". .", VectorFormat.WORD2VEC_BINARY, "has a blank"),
        ("x" * 5000, VectorFormat.WORD2VEC_BINARY, "is longer than 4096 bytes"),
    ],
)
def test_refuses_to_write_what_could_not_be_read(tmp_path, word, format, message):
    vectors = random_vectors(1)
    object.__setattr__(vectors, "words", (word,))
    (tmp_path / "v").write_text("before")
    with pytest.raises(FormatError, match=message):
        write_vectors(tmp_path / "v", vectors, format)
    assert (tmp_path / "v").read_text() == "before"
