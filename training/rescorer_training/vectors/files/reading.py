"""Read word vectors in any of the formats."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from rescorer.errors import FormatError
from rescorer.formats.io import text_io
from rescorer_training.data.pipes import is_pipe
from rescorer_training.vectors.files.binary_files import read_binary
from rescorer_training.vectors.files.formats import Encoding, VectorFormat, detect_format
from rescorer_training.vectors.files.text_files import read_text
from rescorer_training.vectors.word_vectors import WordVectors

OTHER_ENCODING = (
    "if the file has another encoding, give --encoding, or first convert it: "
    "rescorer-train vectors convert FILE OUTPUT --to glove --encoding cp1252"
)
HEAD_BYTES = 1 << 20
"""Bytes from which the format is detected: two lines of the widest vectors."""


def read_vectors(
    path: Path,
    format: VectorFormat | None = None,
    *,
    keep: Container[str] | None = None,
    limit: int | None = None,
    encoding: Encoding = Encoding.UTF_8,
    dimensions: int | None = None,
) -> WordVectors:
    """Read a file of word vectors, which may be compressed by gzip.

    Args:
        format: None to detect it from the content, see ``detect_format``.
        keep: words to keep; the vectors of others are not even parsed. None for all.
        limit: number of words to read, from the start of the file, which usually has the most frequent ones.
            What comes after them is not checked.
        encoding: encoding of the words.
        dimensions: size of the embedding that the vectors are for; None for any.

    Raises:
        FormatError: the file cannot be read, is empty, incomplete or damaged, has none of the words to keep,
            a word does not have as many values as the others or as expected, a word occurs twice, or a value
            is not finite; names line, word or byte.
    """
    if format is None:
        format = detect_format(_read_head(path))
    try:
        if format is VectorFormat.WORD2VEC_BINARY:
            return read_binary(path, keep=keep, limit=limit, encoding=encoding, expected=dimensions)
        return read_text(
            path, has_header=format is VectorFormat.WORD2VEC, keep=keep, limit=limit, encoding=encoding,
            expected=dimensions,
        )  # fmt: skip
    except text_io.EncodingError as error:
        raise FormatError(f"{error.message}; {OTHER_ENCODING}", file=error.file, line=error.line) from None


def _read_head(path: Path) -> bytes:
    if is_pipe(path):
        message = "is a pipe, but word vectors are read more than once; give the name of a file"
        raise FormatError(message, file=str(path))
    if not path.is_file():
        problem = (
            "is not a file; expected a file of word vectors" if path.exists() else "there is no such file"
        )
        raise FormatError(problem, file=str(path))
    head = bytearray()
    for chunk in text_io.read_byte_chunks(path):
        head += chunk
        if len(head) >= HEAD_BYTES or head.count(b"\n") >= 2:
            break
    return bytes(head)
