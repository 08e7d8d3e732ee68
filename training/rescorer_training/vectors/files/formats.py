"""The formats of word vectors: their names, and which one a file has.

- ``word2vec``: a line with the number of words and of dimensions, then per line a word and its values.
- ``word2vec-binary``: the same first line; then per word the word, a blank, the values as little-endian
  float32, and a line end, which some programs leave out.
- ``glove``: per line a word and its values, without a first line. The word may contain blanks, as a few of
  the published ones do.

The reference for the first two is ``word2vec.c`` (Mikolov et al. 2013), for the third ``glove.c`` (Pennington
et al. 2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rescorer.errors import FormatError, quote

MAX_DIMENSIONS = 1 << 16
"""Largest number of values per word. A larger one in a header is taken for damage."""
MAX_WORD_BYTES = 1 << 12
"""Longest word of a binary file."""


class VectorFormat(StrEnum):
    """Format of a file of word vectors."""

    WORD2VEC = "word2vec"
    WORD2VEC_BINARY = "word2vec-binary"
    GLOVE = "glove"


class Encoding(StrEnum):
    """Encoding of the words of a file. Files that passed through Windows may have the second one."""

    UTF_8 = "utf-8"
    WINDOWS = "cp1252"
    LATIN_1 = "latin-1"


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a word2vec file."""

    n_words: int
    dimensions: int


def parse_header(line: bytes) -> Header | None:
    """Parse a line of two whole numbers; None if it is anything else."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 19 for field in fields):
        return None
    return Header(int(fields[0]), int(fields[1]))


def check_header(header: Header, file: str, expected: int | None = None) -> None:
    """Refuse a header that no file of word vectors has, before anything is read by it.

    Raises:
        FormatError: there are no words, or the number of dimensions is 0, absurd, or not the expected one.
    """
    if not header.n_words:
        raise FormatError("the header announces 0 words; expected at least 1", file=file, line=1)
    if not 1 <= header.dimensions <= MAX_DIMENSIONS:
        message = (
            f"the header announces {header.dimensions} values per word; expected 1 to {MAX_DIMENSIONS}: "
            "the file is damaged or in another format"
        )
        raise FormatError(message, file=file, line=1)
    check_dimensions(header.dimensions, expected, file, 1)


def check_dimensions(found: int, expected: int | None, file: str, line: int) -> None:
    """Raise FormatError if vectors do not have the expected number of values; None expects any."""
    if expected is not None and found != expected:
        message = f"{found} values per word; expected {expected}, the size of the embedding"
        raise FormatError(message, file=file, line=line)


def detect_format(head: bytes) -> VectorFormat:
    """Detect the format from the start of a file, its first two lines or more.

    If the first line is two whole numbers, the file is word2vec's: text if the second line ends in as many
    numbers as the first announces, and binary otherwise. Without such a line it is GloVe's. So a GloVe file
    of one dimension whose first word and value are whole numbers needs its format to be named.
    """
    first, _, rest = head.partition(b"\n")
    header = parse_header(first)
    if header is None:
        return VectorFormat.GLOVE
    second = rest.partition(b"\n")[0].rstrip().split(b" ")
    numbers = second[-header.dimensions :] if header.dimensions else []
    is_text = len(second) > header.dimensions and all(map(is_number, numbers))
    return VectorFormat.WORD2VEC if is_text else VectorFormat.WORD2VEC_BINARY


def is_number(field: str | bytes) -> bool:
    """Whether a field of a line is a number, also ``nan``."""
    try:
        float(field)
    except ValueError:
        return False
    return True


class Rows:
    """Words and vectors as they are read, each checked against those before."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._numbers: dict[str, int] = {}
        self._vectors: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._vectors)

    def add(self, word: str, vector: np.ndarray, number: int, unit: str) -> None:
        """Add a word.

        Args:
            vector: (D,) float32.
            number: number of the line or of the word, counted from 1.
            unit: ``line`` or ``word``, for messages.

        Raises:
            FormatError: the word is there already, or a value is not finite.
        """
        line = number if unit == "line" else None
        place = "" if line else f"{unit} {number}: "
        if word in self._numbers:
            message = f"{place}{quote(word)} occurs twice, first in {unit} {self._numbers[word]}"
            raise FormatError(message, file=self._file, line=line)
        if not np.isfinite(vector).all():
            message = f"{place}{quote(word)} has a value that is not finite (as float32)"
            raise FormatError(message, file=self._file, line=line)
        self._numbers[word] = number
        self._vectors.append(vector)

    def finish(self, *, is_filtered: bool) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the words, and their vectors as (V, D) float32.

        Args:
            is_filtered: whether words of the file were left out, for the message.

        Raises:
            FormatError: there is none.
        """
        if not self._vectors:
            message = "no vector of any of the words to keep" if is_filtered else "no words"
            raise FormatError(f"{message}; expected at least one word with its vector", file=self._file)
        return tuple(self._numbers), np.stack(self._vectors)
