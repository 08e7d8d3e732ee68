"""Word vectors written and read back: the same words, the same float32."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import FormatError
from rescorer_training.vectors.files import (
    Encoding,
    VectorFormat,
    WordVectors,
    detect_format,
    is_number,
    read_vectors,
    write_vectors,
)
from tests.support.random_vectors import WORDS, random_vectors, word_vectors

FORMATS = list(VectorFormat)


def assert_same(found: WordVectors, expected: WordVectors) -> None:
    assert found.words == expected.words
    assert found.matrix.dtype == np.float32
    np.testing.assert_array_equal(found.matrix.view(np.int32), expected.matrix.view(np.int32))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
@given(vectors=word_vectors())
def test_reads_back_what_was_written(tmp_path_factory, format, suffix, vectors):
    path = tmp_path_factory.getbasetemp() / f"{format}{suffix}"
    write_vectors(path, vectors, format)
    assert_same(read_vectors(path, format), vectors)
    assert path.read_bytes().startswith(b"\x1f\x8b") == bool(suffix)


@pytest.mark.parametrize("format", FORMATS)
@given(vectors=word_vectors())
def test_detects_the_format_that_was_written(tmp_path_factory, format, vectors):
    path = tmp_path_factory.getbasetemp() / format
    write_vectors(path, vectors, format)
    assert_same(read_vectors(path), vectors)


@given(vectors=word_vectors(st.lists(WORDS, min_size=1, max_size=3).map(" ".join)))
def test_writes_blanks_to_glove_or_refuses(tmp_path_factory, vectors):
    path = tmp_path_factory.getbasetemp() / "blanks"
    if any(is_number(part) for word in vectors.words for part in word.split(" ")[1:]):
        with pytest.raises(FormatError, match="has a number after a blank"):
            write_vectors(path, vectors, VectorFormat.GLOVE)
    else:
        write_vectors(path, vectors, VectorFormat.GLOVE)
        assert_same(read_vectors(path), vectors)


@pytest.mark.parametrize("format", FORMATS)
def test_reads_some_of_the_words(tmp_path, format):
    vectors = random_vectors(10)
    write_vectors(tmp_path / "v", vectors, format)
    assert_same(read_vectors(tmp_path / "v", limit=4), WordVectors(vectors.words[:4], vectors.matrix[:4]))
    assert_same(read_vectors(tmp_path / "v", limit=99), vectors)
    kept = read_vectors(tmp_path / "v", keep={"w7", "w2", "unknown"})
    assert_same(kept, WordVectors(("w2", "w7"), vectors.matrix[[2, 7]]))


@pytest.mark.parametrize(
    ("head", "format"),
    [
        (b"2 3\na 1 2 3\n", VectorFormat.WORD2VEC),
        (b"2 3\na 1 2 3 \n", VectorFormat.WORD2VEC),  # as word2vec.c ends its lines
        (b"2 3\na b 1 nan -3e-5\n", VectorFormat.WORD2VEC),
        (b"2 3\na \x00\x00\x80?abcdabcd\nb ", VectorFormat.WORD2VEC_BINARY),
        (b"2 3\na 1 2\n", VectorFormat.WORD2VEC_BINARY),
        (b"2 3 4\na 1 2\n", VectorFormat.GLOVE),
        (b"the 0.1\n", VectorFormat.GLOVE),
        (b"", VectorFormat.GLOVE),
    ],
)
def test_detects_by_the_first_two_lines(head, format):
    assert detect_format(head) is format


def test_reads_what_the_original_programs_write(tmp_path):
    expected = WordVectors(("</s>", "a"), np.array([[1, -2], [0.5, 3]], np.float32))
    (tmp_path / "text").write_bytes(b"2 2\n</s> 1.000000 -2.000000 \na 0.500000 3.000000 \n")
    rows = [word + vector.tobytes() for word, vector in zip((b"</s> ", b"a "), expected.matrix, strict=True)]
    (tmp_path / "lines").write_bytes(b"2 2\n" + b"".join(row + b"\n" for row in rows))
    (tmp_path / "plain").write_bytes(b"2 2\n" + b"".join(rows))  # as gensim does
    (tmp_path / "glove").write_bytes(gzip.compress(b"</s> 1 -2\r\na 0.5 3\r\n"))
    for name in ("text", "lines", "plain", "glove"):
        assert_same(read_vectors(tmp_path / name), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_reads_other_encodings(tmp_path, format):
    write_vectors(tmp_path / "v", WordVectors(("–", "a"), np.ones((2, 2), np.float32)), format)
    content = (tmp_path / "v").read_bytes()
    (tmp_path / "v").write_bytes(content.replace("–".encode(), b"\x96"))
    advice = "if the file has another encoding, name it to make a copy in UTF-8: rescorer-train vectors"
    with pytest.raises(FormatError, match=f"UTF-8.*; {advice} convert") as caught:
        read_vectors(tmp_path / "v")
    assert caught.value.file == str(tmp_path / "v")
    assert read_vectors(tmp_path / "v", encoding=Encoding.WINDOWS).words == ("–", "a")


@pytest.mark.parametrize("format", [VectorFormat.WORD2VEC, VectorFormat.WORD2VEC_BINARY])
@settings(max_examples=20)
@given(vectors=word_vectors(st.text("abcä1", min_size=1)))
def test_gensim_reads_our_files_and_we_read_its(tmp_path_factory, format, vectors):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    path, binary = tmp_path_factory.getbasetemp() / "ours", format is VectorFormat.WORD2VEC_BINARY
    write_vectors(path, vectors, format)
    loaded = models.KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert_same(WordVectors(tuple(loaded.index_to_key), loaded.vectors), vectors)
    loaded.save_word2vec_format(str(path), binary=binary)
    assert_same(read_vectors(path), vectors)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@settings(max_examples=20)
@given(vectors=word_vectors(st.text("abcä1", min_size=1)))
def test_gensim_reads_our_glove_files(tmp_path_factory, vectors):
    """gensim 4.4 leaves the file open, hence the filters."""
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    path = tmp_path_factory.getbasetemp() / "glove"
    write_vectors(path, vectors, VectorFormat.GLOVE)
    loaded = models.KeyedVectors.load_word2vec_format(str(path), no_header=True)
    assert_same(WordVectors(tuple(loaded.index_to_key), loaded.vectors), vectors)
