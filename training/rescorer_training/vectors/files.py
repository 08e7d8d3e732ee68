"""Files of word vectors, as word2vec and GloVe write them; see ``read_vectors`` and ``write_vectors``.

- ``word2vec``: a line with the number of words and of dimensions, then per line a word and its values.
- ``word2vec-binary``: the same first line; then per word the word, a blank, the values as little-endian
  float32, and a line end, which some programs leave out.
- ``glove``: per line a word and its values, without a first line. A word may contain blanks, as a few words
  of the published files do.

The reference for the first two is ``word2vec.c`` (Mikolov et al. 2013), for the third ``glove.c`` (Pennington
et al. 2014).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import numpy as np
import orjson

from rescorer.errors import FormatError, ScoringError, quote
from rescorer.formats.io import text_io
from rescorer_training.pipes import is_pipe


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A vocabulary with one vector per word. The most frequent words come first.

    Raises:
        ValueError: there is no word or no dimension, a word occurs twice, the matrix does not have one row
            per word, is not of type float32, or has a value that is not finite.
    """

    words: tuple[str, ...]
    matrix: np.ndarray
    """(V, D) float32."""

    def __post_init__(self) -> None:
        shape = self.matrix.shape
        if len(shape) != 2 or shape[0] != len(self.words) or not self.matrix.size:
            raise ValueError(f"expected a matrix of shape ({len(self.words)}, dimensions), got {shape}")
        if self.matrix.dtype != np.float32:
            raise ValueError(f"expected values of type float32, got {self.matrix.dtype}")
        if len(self.index) != len(self.words):
            double = next(word for row, word in enumerate(self.words) if self.index[word] != row)
            raise ValueError(f"the word {quote(double)} occurs twice")
        if not np.isfinite(self.matrix).all():
            bad = int(np.flatnonzero(~np.isfinite(self.matrix).all(axis=1))[0])
            raise ValueError(f"the vector of {quote(self.words[bad])} has a value that is not finite")

    @cached_property
    def index(self) -> dict[str, int]:
        """Row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @property
    def dimensions(self) -> int:
        """Number of values per word."""
        return int(self.matrix.shape[1])

    def normalised(self) -> np.ndarray:
        """Return the rows scaled to length 1, (V, D) float32. A row of zeros stays the same."""
        lengths = np.linalg.norm(self.matrix.astype(np.float64), axis=1, keepdims=True)
        return (self.matrix / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


FEWER_PAIRS = ", or count fewer pairs: a smaller --window or a larger --min-count"


@contextmanager
def report_full_disk(folder: Path, content: str, advice: str = "") -> Iterator[None]:
    """Turn an error in writing to a folder into one that tells the user what to do.

    Args:
        content: name, in the plural, for what is written: ``co-occurrences``.
        advice: text after "choose another folder" in the message.

    Raises:
        ScoringError: a file cannot be written, for example because the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise ScoringError(
            f"{folder}: {content} cannot be written: {error.strerror or error}. Free disk space, or choose "
            f"another folder{advice}"
        ) from None


MAX_DIMENSIONS = 1 << 16
"""Largest number of values per word. A file is damaged if its header announces more."""
MAX_WORD_BYTES = 1 << 12
"""Maximum length of a word in a binary file."""


class VectorFormat(StrEnum):
    """Format of a file of word vectors."""

    WORD2VEC = "word2vec"
    WORD2VEC_BINARY = "word2vec-binary"
    GLOVE = "glove"


class Encoding(StrEnum):
    """Encoding of the words of a file. Programs on Windows may have written cp1252."""

    UTF_8 = "utf-8"
    WINDOWS = "cp1252"
    LATIN_1 = "latin-1"


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a word2vec file."""

    n_words: int
    dimensions: int


def parse_header(line: bytes) -> Header | None:
    """Parse a line of two whole numbers; return None for any other line."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 19 for field in fields):
        return None
    return Header(int(fields[0]), int(fields[1]))


def detect_format(head: bytes) -> VectorFormat:
    """Detect the format of a file from its start, which must have at least two lines.

    If the first line is two whole numbers, the format is one of word2vec's: text if the second line ends in
    as many numbers as the first line announces, and binary otherwise. If not, the format is GloVe's. One kind
    of GloVe file is detected wrongly, so that its format must be given: that whose first word is a number and
    has a single value.
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
    """Whether a field of a line is a number or ``nan``."""
    try:
        float(field)
    except ValueError:
        return False
    return True


VALUE = np.dtype("<f4")
MAX_HEADER_BYTES = 64


class VectorReader:
    """Reads and checks one file of word vectors; see ``read_vectors`` for the arguments and errors."""

    def __init__(
        self,
        path: Path,
        keep: Container[str] | None,
        limit: int | None,
        encoding: Encoding,
        dimensions: int | None,
    ) -> None:
        self.path, self.keep, self.limit, self.encoding = path, keep, limit, encoding
        self.expected_dimensions = dimensions
        self._numbers: dict[str, int] = {}
        self._vectors: list[np.ndarray] = []

    def read_text(self, *, has_header: bool) -> WordVectors:
        """Read word2vec's or GloVe's text format; blank lines are skipped."""
        lines = text_io.read_lines_strict(self.path, self.encoding)
        header = self._read_header(lines) if has_header else None
        dimensions = header.dimensions if header else None
        n_lines = 0
        for number, line in lines:
            fields = line.rstrip(" ").split(" ")
            if fields == [""]:
                continue
            if dimensions is None:
                dimensions = self._count_values(fields, number)
                self._check_dimensions(dimensions, number)
            if n_lines == self.limit:
                return self._finish()
            n_lines += 1
            word = self._parse_word(fields, dimensions, number)
            if self.keep is None or word in self.keep:
                self._add(word, self._parse_values(fields[-dimensions:], word, number), number, "line")
        if header and n_lines != header.n_words:
            message = f"the header announces {header.n_words:,} words, but the file has {n_lines:,}"
            raise self._error(f"{message}: it is incomplete, or the header is wrong")
        return self._finish()

    def read_binary(self) -> WordVectors:
        """Read word2vec's binary format.

        Memory grows with the number of words in the file, not with the number that the header announces.
        """
        stream = _ByteStream(text_io.read_byte_chunks(self.path))
        header = parse_header(stream.read_until(b"\n", MAX_HEADER_BYTES) or b"")
        if header is None:
            message = "no header; expected a first line with the number of words and of values per word"
            raise self._error(message, 1)
        self._check_header(header)
        row_bytes = header.dimensions * VALUE.itemsize
        for number in range(1, min(header.n_words, self.limit or header.n_words) + 1):
            start = stream.position
            raw = stream.read_until(b" ", MAX_WORD_BYTES + 1)  # one more: the line end of the word before
            values = stream.read(row_bytes) if raw is not None else b""
            if raw is None or len(values) < row_bytes:
                raise self._error(_explain_end(number, header.n_words, start, stream))
            word = self._decode(raw.lstrip(b"\n"), number, start)
            if self.keep is None or word in self.keep:
                self._add(word, np.frombuffer(values, VALUE).astype(np.float32), number, "word")
        if self.limit is None and stream.read(2).strip(b"\n"):
            message = f"the header announces {header.n_words:,} words, but there are more bytes after them"
            raise self._error(f"{message}, from byte {stream.position}")
        return self._finish()

    def _error(self, message: str, line: int | None = None) -> FormatError:
        return FormatError(message, file=str(self.path), line=line)

    def _read_header(self, lines: Iterator[tuple[int, str]]) -> Header:
        _, first = next(lines, (1, ""))
        header = parse_header(first.encode())
        if header is None:
            message = f"the first line is {quote(first)}; expected the number of words and of values per word"
            raise self._error(f"{message}, as word2vec writes them", 1)
        self._check_header(header)
        return header

    def _check_header(self, header: Header) -> None:
        """Check a header, before its numbers are used for reading."""
        if not header.n_words:
            raise self._error("the header announces 0 words; expected at least 1", 1)
        if not 1 <= header.dimensions <= MAX_DIMENSIONS:
            raise self._error(
                f"the header announces {header.dimensions} values per word; expected 1 to {MAX_DIMENSIONS}: "
                "the file is damaged or in another format",
                1,
            )
        self._check_dimensions(header.dimensions, 1)

    def _check_dimensions(self, found: int, line: int) -> None:
        if self.expected_dimensions not in (None, found):
            expected = f"expected {self.expected_dimensions}, the size of the embedding"
            raise self._error(f"{found} values per word; {expected}", line)

    def _count_values(self, fields: list[str], number: int) -> int:
        """Count the numbers at the end of the first line. A word must come before them."""
        last_text = max((place for place, field in enumerate(fields) if not is_number(field)), default=0)
        n_values = len(fields) - 1 - last_text
        if not n_values:
            raise self._error(f"{quote(' '.join(fields))} is not a word and its values", number)
        return n_values

    def _parse_word(self, fields: list[str], dimensions: int, number: int) -> str:
        """Return the word of a line: all fields except the last ``dimensions`` ones."""
        word = fields[:-dimensions]
        if not word or word == [""] or any(is_number(field) for field in word[1:]):
            message = f"{len(fields) - 1} values; expected {dimensions}, as in the lines before or the header"
            raise self._error(message, number)
        return " ".join(word)

    def _parse_values(self, fields: list[str], word: str, number: int) -> np.ndarray:
        """Return a vector, (D,) float32."""
        try:
            with np.errstate(over="ignore"):  # found by the check that values are finite
                return np.array([float(field) for field in fields]).astype(np.float32)
        except ValueError as error:
            raise self._error(f"{quote(word)}: {error}", number) from None

    def _decode(self, raw: bytes, number: int, start: int) -> str:
        message = f"word {number}, from byte {start + 1}: {raw[:20]!r} is not a word in "
        message += f"{self.encoding.upper()}; the file is damaged, or not in this format"
        if not raw:
            raise self._error(message)
        try:
            return raw.decode(self.encoding)
        except UnicodeDecodeError:
            raise text_io.EncodingError(message, file=str(self.path)) from None

    def _add(self, word: str, vector: np.ndarray, number: int, unit: str) -> None:
        """Add a word and its vector.

        Args:
            vector: (D,) float32.
            number: number of the line or of the word, counted from 1.
            unit: ``line`` or ``word``, for messages.
        """
        line = number if unit == "line" else None
        place = "" if line else f"{unit} {number}: "
        if word in self._numbers:
            first = f"{unit} {self._numbers[word]}"
            raise self._error(f"{place}{quote(word)} occurs twice, first in {first}", line)
        if not np.isfinite(vector).all():
            raise self._error(f"{place}{quote(word)} has a value that is not finite (as float32)", line)
        self._numbers[word] = number
        self._vectors.append(vector)

    def _finish(self) -> WordVectors:
        if not self._vectors:
            problem = "no words" if self.keep is None else "no vector of any of the words to keep"
            raise self._error(f"{problem}; expected at least one word with its vector")
        return WordVectors(tuple(self._numbers), np.stack(self._vectors))


def write_text(path: Path, vectors: WordVectors, *, has_header: bool) -> None:
    """Write word2vec's or GloVe's text format. Values have so many digits that each float32 can be read back.

    Raises:
        FormatError: a word cannot be read back from such a line, or the file cannot be written.
    """
    for word in vectors.words:
        if problem := find_problem(word, blanks=not has_header):
            raise FormatError(f"the word {quote(word)} {problem}", file=str(path))
    with text_io.open_output(path) as stream:
        if has_header:
            stream.write(f"{len(vectors)} {vectors.dimensions}\n")
        for word, row in zip(vectors.words, vectors.matrix, strict=True):
            values = orjson.dumps(np.ascontiguousarray(row), option=orjson.OPT_SERIALIZE_NUMPY)
            stream.write(f"{word} {values[1:-1].decode().replace(',', ' ')}\n")


def find_problem(word: str, *, blanks: bool) -> str:
    """Return why a word cannot be written; empty if it can be written.

    Args:
        blanks: whether a word may contain blanks, as in GloVe's format.
    """
    if not word or word != word.strip(" \r") or any(mark in word for mark in "\n\0"):
        return "is empty, or has a line end, a NUL or a blank at its end; no format of vectors can hold it"
    if word.startswith(text_io.BYTE_ORDER_MARK) or word != word.encode(errors="ignore").decode():
        return "starts with a byte order mark or is not valid Unicode; no format of vectors can hold it"
    if not blanks and " " in word:
        return "has a blank, which word2vec's formats cannot hold; write the format glove"
    if any(is_number(part) for part in word.split(" ")[1:]):
        return "has a number after a blank, which could not be told from its values"
    return ""


def write_binary(path: Path, vectors: WordVectors) -> None:
    """Write word2vec's binary format, with a line end after every word as ``word2vec.c`` does.

    Raises:
        FormatError: the format cannot hold a word, or the file cannot be written.
    """
    for word in vectors.words:
        problem = find_problem(word, blanks=False)
        if problem or len(word.encode()) > MAX_WORD_BYTES:
            problem = problem or f"is longer than {MAX_WORD_BYTES} bytes"
            raise FormatError(f"the word {quote(word)} {problem}", file=str(path))
    with text_io.open_binary_output(path) as stream:
        stream.write(f"{len(vectors)} {vectors.dimensions}\n".encode())
        for word, row in zip(vectors.words, vectors.matrix, strict=True):
            stream.write(word.encode() + b" " + row.astype(VALUE).tobytes() + b"\n")


def _explain_end(number: int, n_words: int, start: int, stream: _ByteStream) -> str:
    if not stream.at_end:
        return (
            f"word {number}, from byte {start + 1}: no blank within {MAX_WORD_BYTES} bytes, where a word "
            "should end; the file is damaged, or its values do not have 4 bytes"
        )
    return (
        f"the file ends at byte {stream.n_received}, in word {number} of the {n_words:,} that the header "
        "announces: it is incomplete, or the header is wrong"
    )


class _ByteStream:
    """A stream of bytes that come in chunks. One can read a number of bytes, or all bytes up to a mark."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._pending = bytearray()
        self.position = 0
        """Number of bytes read."""
        self.at_end = False

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes; fewer at the end."""
        while len(self._pending) < n_bytes and self._fill():
            pass
        return self._take(n_bytes)

    def read_until(self, mark: bytes, max_bytes: int) -> bytes | None:
        """Return the bytes before a mark, and skip it; None if there is no mark within ``max_bytes``."""
        while (found := self._pending.find(mark, 0, max_bytes + 1)) < 0:
            if len(self._pending) > max_bytes or not self._fill():
                return None
        return self._take(found + 1)[:-1]

    @property
    def n_received(self) -> int:
        """Number of bytes that have come from the file so far, including those that wait to be read."""
        return self.position + len(self._pending)

    def _take(self, n_bytes: int) -> bytes:
        taken = bytes(self._pending[:n_bytes])
        del self._pending[:n_bytes]
        self.position += len(taken)
        return taken

    def _fill(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            self.at_end = True
            return False
        self._pending += chunk
        return True


def write_vectors(path: Path, vectors: WordVectors, format: VectorFormat) -> None:
    """Write a file of word vectors, compressed by gzip if its name ends in ``.gz``.

    An existing file is replaced only once the new one is complete.

    Raises:
        FormatError: the format cannot hold a word, or the file cannot be written.
    """
    if format is VectorFormat.WORD2VEC_BINARY:
        return write_binary(path, vectors)
    write_text(path, vectors, has_header=format is VectorFormat.WORD2VEC)


OTHER_ENCODING = (
    "if the file has another encoding, name it to make a copy in UTF-8: "
    "rescorer-train vectors convert FILE OUTPUT --to glove --encoding cp1252"
)
HEAD_BYTES = 1 << 20
"""Number of bytes from which the format is detected: enough for two lines of the longest vectors."""


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
        format: format of the file; None to detect it, see ``detect_format``.
        keep: words to keep; the vectors of all other words are not parsed. None to keep all words.
        limit: number of words to read from the start of the file, where the most frequent words usually are.
            The rest of the file is not checked.
        encoding: encoding of the words.
        dimensions: expected number of values per word, such as the size of an embedding; None for any.

    Raises:
        FormatError: the file cannot be read, is empty, incomplete or damaged, or has none of the words to
            keep; or a word occurs twice, has another number of values than expected, or has a value that is
            not finite. The message names the line, word or byte.
    """
    if format is None:
        format = detect_format(_read_head(path))
    reader = VectorReader(path, keep, limit, encoding, dimensions)
    try:
        if format is VectorFormat.WORD2VEC_BINARY:
            return reader.read_binary()
        return reader.read_text(has_header=format is VectorFormat.WORD2VEC)
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
