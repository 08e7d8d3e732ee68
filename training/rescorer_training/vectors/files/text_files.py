"""Read and write word vectors as text: per line a word and its values."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np
import orjson

from rescorer.errors import FormatError, quote
from rescorer.formats.io import text_io
from rescorer_training.vectors.files.formats import (
    Encoding,
    Header,
    Rows,
    check_dimensions,
    check_header,
    is_number,
    parse_header,
)
from rescorer_training.vectors.word_vectors import WordVectors


def read_text(
    path: Path,
    *,
    has_header: bool,
    keep: Container[str] | None = None,
    limit: int | None = None,
    encoding: Encoding = Encoding.UTF_8,
    expected: int | None = None,
) -> WordVectors:
    """Read word2vec's text or GloVe's; blank lines are skipped. See ``read_vectors``."""
    name, rows = str(path), Rows(str(path))
    lines = text_io.read_lines_strict(path, encoding)
    header = _read_header(lines, name, expected) if has_header else None
    dimensions = header.dimensions if header else None
    n_lines = 0
    for number, line in lines:
        fields = line.rstrip(" ").split(" ")
        if fields == [""]:
            continue
        if dimensions is None:
            dimensions = _count_values(fields, name, number)
            check_dimensions(dimensions, expected, name, number)
        if limit is not None and n_lines == limit:
            return WordVectors(*rows.finish(is_filtered=keep is not None))
        n_lines += 1
        word = _parse_word(fields, dimensions, name, number)
        if keep is None or word in keep:
            rows.add(word, _parse_values(fields[-dimensions:], word, name, number), number, "line")
    if header and n_lines != header.n_words:
        message = f"the header announces {header.n_words:,} words, but the file has {n_lines:,}"
        raise FormatError(f"{message}: it is incomplete, or the header is wrong", file=name)
    return WordVectors(*rows.finish(is_filtered=keep is not None))


def write_text(path: Path, vectors: WordVectors, *, has_header: bool) -> None:
    """Write word2vec's text or GloVe's; every value has as many digits as its float32 needs.

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
    """Return why a word cannot be written; empty if it can.

    Args:
        blanks: whether a word may contain blanks, as in GloVe's format.
    """
    if not word or word != word.strip(" \r") or any(mark in word for mark in "\n\0"):
        return "is empty, or has a line end, a NUL or a blank at its end; no format of vectors can hold it"
    if word.startswith(text_io.BYTE_ORDER_MARK) or not _is_encodable(word):
        return "starts with a byte order mark or is not valid Unicode; no format of vectors can hold it"
    if not blanks and " " in word:
        return "has a blank, which word2vec's formats cannot hold; write the format glove"
    if any(is_number(part) for part in word.split(" ")[1:]):
        return "has a number after a blank, which could not be told from its values"
    return ""


def _is_encodable(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_header(lines: Iterator[tuple[int, str]], name: str, expected: int | None) -> Header:
    _, first = next(lines, (1, ""))
    header = parse_header(first.encode())
    if header is None:
        message = f"the first line is {quote(first)}; expected the number of words and of values per word"
        raise FormatError(f"{message}, as word2vec writes them", file=name, line=1)
    check_header(header, name, expected)
    return header


def _count_values(fields: list[str], name: str, number: int) -> int:
    """Count the numbers at the end of the first line, of which one word at least comes before."""
    last_text = max((place for place, field in enumerate(fields) if not is_number(field)), default=0)
    n_values = len(fields) - 1 - last_text
    if not n_values:
        message = f"{quote(' '.join(fields))} is not a word and its values"
        raise FormatError(message, file=name, line=number)
    return n_values


def _parse_word(fields: list[str], dimensions: int, name: str, number: int) -> str:
    """Return the word, which is everything before the last ``dimensions`` fields."""
    word = fields[:-dimensions]
    if not word or word == [""] or any(is_number(field) for field in word[1:]):
        message = f"{len(fields) - 1} values; expected {dimensions}, as in the lines before or the header"
        raise FormatError(message, file=name, line=number)
    return " ".join(word)


def _parse_values(fields: list[str], word: str, name: str, number: int) -> np.ndarray:
    """Return a vector, (D,) float32."""
    try:
        with np.errstate(over="ignore"):  # found by the check that values are finite
            return np.array([float(field) for field in fields]).astype(np.float32)
    except ValueError as error:
        raise FormatError(f"{quote(word)}: {error}", file=name, line=number) from None
