"""Read and write word2vec's binary files."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np

from rescorer.errors import FormatError, quote
from rescorer.formats.io import text_io
from rescorer_training.vectors.files.formats import MAX_WORD_BYTES, Encoding, Rows, check_header, parse_header
from rescorer_training.vectors.files.text_files import find_problem
from rescorer_training.vectors.word_vectors import WordVectors

VALUE = np.dtype("<f4")
MAX_HEADER_BYTES = 64


def read_binary(
    path: Path,
    *,
    keep: Container[str] | None = None,
    limit: int | None = None,
    encoding: Encoding = Encoding.UTF_8,
    expected: int | None = None,
) -> WordVectors:
    """Read word2vec's binary format. See ``read_vectors``.

    Memory grows with what the file has, not with what its header announces.
    """
    name, rows = str(path), Rows(str(path))
    stream = _ByteStream(text_io.read_byte_chunks(path))
    header = parse_header(stream.read_until(b"\n", MAX_HEADER_BYTES) or b"")
    if header is None:
        message = "no header; expected a first line with the number of words and of values per word"
        raise FormatError(message, file=name, line=1)
    check_header(header, name, expected)
    row_bytes = header.dimensions * VALUE.itemsize
    for number in range(1, min(header.n_words, limit or header.n_words) + 1):
        start = stream.position
        raw = stream.read_until(b" ", MAX_WORD_BYTES + 1)  # one more: the line end of the word before
        values = stream.read(row_bytes) if raw is not None else b""
        if raw is None or len(values) < row_bytes:
            raise FormatError(_explain_end(number, header.n_words, start, stream), file=name)
        word = _decode(raw.lstrip(b"\n"), number, start, name, encoding)
        if keep is None or word in keep:
            rows.add(word, np.frombuffer(values, VALUE).astype(np.float32), number, "word")
    if limit is None and stream.read(2).strip(b"\n"):
        message = f"the header announces {header.n_words:,} words, but there are more bytes after them"
        raise FormatError(f"{message}, from byte {stream.position}", file=name)
    return WordVectors(*rows.finish(is_filtered=keep is not None))


def write_binary(path: Path, vectors: WordVectors) -> None:
    """Write word2vec's binary format, with a line end after every word as ``word2vec.c`` does.

    Raises:
        FormatError: a word has a blank or cannot be written, or the file cannot be.
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


def _decode(raw: bytes, number: int, start: int, name: str, encoding: Encoding) -> str:
    message = f"word {number}, from byte {start + 1}: {raw[:20]!r} is not a word in {encoding.upper()}"
    damage = "the file is damaged, or not in this format"
    if not raw:
        raise FormatError(f"{message}; {damage}", file=name)
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        raise text_io.EncodingError(f"{message}; {damage}", file=name) from None


class _ByteStream:
    """Bytes from chunks, read by number or up to a mark."""

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
        """Return the bytes before a mark and skip the mark; None if it does not come within ``max_bytes``."""
        while (found := self._pending.find(mark, 0, max_bytes + 1)) < 0:
            if len(self._pending) > max_bytes or not self._fill():
                return None
        return self._take(found + 1)[:-1]

    @property
    def n_received(self) -> int:
        """Number of bytes read or waiting to be read; all of the file's at its end."""
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
