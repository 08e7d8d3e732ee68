"""Write n-gram models to ARPA files, and read ARPA files into arrays."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np

from rescorer.errors import FormatError
from rescorer.lm.files.arpa_lines import ArpaOrder, find_wrong_line, parse_ngrams, split_sections
from rescorer.lm.files.word_ids import WordIds
from rescorer_training.progress import track

NGRAMS_PER_BLOCK = 200_000
"""Number of n-grams to format in memory before writing them."""
READ_SIZE_BYTES = 1 << 19
"""Number of bytes of a file to read and parse at a time."""
GZIP_LEVEL = 4
"""Compression level: twice as fast as gzip's default of 6 on these files, and a few per cent larger."""
MIN_LOG10 = -99.0
"""Log10 probability that stands for log 0 in ARPA files."""


class NGramTable(Protocol):
    """The n-grams of one order, as ``write_arpa`` needs them."""

    @property
    def prefix(self) -> np.ndarray:
        """(N,) row of w_1 … w_{n-1} in the table one order lower."""

    @property
    def word(self) -> np.ndarray:
        """(N,) id of w_n."""

    @property
    def prob(self) -> np.ndarray:
        """(N,) float64 P(w_n | w_1 … w_{n-1})."""

    @property
    def backoff(self) -> np.ndarray:
        """(N,) float64 back-off weight of w_1 … w_n."""

    def __len__(self) -> int: ...


def write_arpa(path: Path, model: Sequence[NGramTable], vocabulary: Sequence[str]) -> None:
    """Write a model to an ARPA file, gzip if the name ends in ``.gz``.

    Args:
        model: one table per order, starting at order 1.
        vocabulary: the word of each id.

    Raises:
        OSError: the file cannot be written.
    """
    with open_output(path) as stream:
        sizes = "".join(f"ngram {n}={len(table)}\n" for n, table in enumerate(model, start=1))
        stream.write(f"\\data\\\n{sizes}".encode())
        for n in range(1, len(model) + 1):
            stream.write(f"\n\\{n}-grams:\n".encode())
            for block in _format_ngrams(model[:n], vocabulary, with_backoff=n < len(model)):
                stream.write(block.encode())
        stream.write(b"\n\\end\\\n")


def open_output(path: Path) -> BinaryIO:
    """Open a file for writing, through gzip if its name ends in ``.gz``; without the time in its header."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(path, "wb", compresslevel=GZIP_LEVEL, mtime=0))
    return open(path, "wb")


def _format_ngrams(
    tables: Sequence[NGramTable], vocabulary: Sequence[str], with_backoff: bool
) -> Iterator[str]:
    """Yield the lines of the last table's n-grams in blocks; the lower-order tables supply the prefixes."""
    top = tables[-1]
    words = np.array(vocabulary, dtype=object)
    line_format = "%.6f\t" + " ".join(["%s"] * len(tables)) + ("\t%.6f\n" if with_backoff else "\n")
    for start in range(0, len(top), NGRAMS_PER_BLOCK):
        rows: np.ndarray = np.arange(start, min(start + NGRAMS_PER_BLOCK, len(top)))
        columns = [clamped_log10(top.backoff[rows]).tolist()] if with_backoff else []
        log10_prob = np.minimum(clamped_log10(top.prob[rows]), 0.0).tolist()
        for table in reversed(tables):
            columns.insert(0, words[table.word[rows]].tolist())
            rows = table.prefix[rows]
        yield "".join([line_format % line for line in zip(log10_prob, *columns, strict=True)])


def clamped_log10(probs: np.ndarray) -> np.ndarray:
    """Return base-10 logarithms as in ARPA files, at least ``MIN_LOG10``."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log10(probs), MIN_LOG10)


def read_arpa_arrays(path: Path, progress: str = "") -> tuple[list[str], list[ArpaOrder]]:
    """Read an ARPA file, gzip or plain, into arrays.

    Args:
        progress: description under which progress is reported; empty for no report.

    Returns:
        The words of the unigrams in the order of the file, which is that of their ids, and the n-grams of
        every order with float64 values.

    Raises:
        FormatError: the file is not an ARPA file or has an invalid line; the error
            names the file and, if known, the line.
    """
    words = WordIds()
    parts: list[list[ArpaOrder]] = []
    for number, order, lines in _read_sections(path, progress):
        if order > len(parts):
            parts.append([])
        try:
            parts[-1].append(parse_ngrams(lines, order, words))
        except ValueError:
            wrong = find_wrong_line(lines, partial(parse_ngrams, order=order, words=words))
            text = lines.split(b"\n")[wrong].decode("utf-8", "replace").strip()
            raise FormatError(
                f"expected a {order}-gram of words in this file, got {text!r}",
                file=str(path),
                line=number + wrong + 1,
            ) from None
        if order == 1 and sum(len(part.ids) for part in parts[0]) != len(words.ids):
            raise FormatError("a 1-gram occurs twice", file=str(path))
    if not parts:
        raise FormatError("no n-grams; expected an ARPA file", file=str(path))
    orders = [ArpaOrder(*map(np.concatenate, zip(*of_order, strict=True))) for of_order in parts]
    return [word.decode("utf-8", "replace") for word in words.ids], orders


def _read_sections(path: Path, progress: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number of lines before each part of the n-grams, their order, and the part."""
    number, order = 0, 0
    try:
        with track(progress, "lines") as task, open(path, "rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_gzip else raw
            for text in _read_whole_lines(stream):
                before = number
                for heading, ngrams in split_sections(text):
                    if heading == b"\\end\\":
                        return
                    if heading:
                        number += 1
                        order = 0 if heading == b"\\data\\" else int(heading[1:].partition(b"-")[0])
                    if order and ngrams.strip():
                        yield number, order, ngrams
                    number += ngrams.count(b"\n")
                task.advance(number - before)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FormatError(f"cannot be read as an ARPA file: {error}", file=str(path)) from None
    raise FormatError("no \\end\\ line; expected a complete ARPA file", file=str(path))


def _read_whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield a text in parts of complete lines; far faster than iterating over the lines of a gzip stream."""
    rest = b""
    while data := stream.read(READ_SIZE_BYTES):
        lines, newline, rest = (rest + data).rpartition(b"\n")
        yield lines + newline
    yield rest
