"""Write word vectors in any of the formats."""

from __future__ import annotations

from pathlib import Path

from rescorer_training.vectors.files.binary_files import write_binary
from rescorer_training.vectors.files.formats import VectorFormat
from rescorer_training.vectors.files.text_files import write_text
from rescorer_training.vectors.word_vectors import WordVectors


def write_vectors(path: Path, vectors: WordVectors, format: VectorFormat) -> None:
    """Write a file of word vectors, compressed by gzip if its name ends in ``.gz``.

    An existing file is replaced only once the new one is complete.

    Raises:
        FormatError: the format cannot hold a word, or the file cannot be written.
    """
    if format is VectorFormat.WORD2VEC_BINARY:
        return write_binary(path, vectors)
    write_text(path, vectors, has_header=format is VectorFormat.WORD2VEC)
