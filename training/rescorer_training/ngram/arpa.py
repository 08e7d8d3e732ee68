"""Write n-gram models to ARPA files, and read ARPA files into arrays (fast) or dictionaries (simple)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np

from rescorer.errors import FormatError
from rescorer_training.data.corpus import read_lines
from rescorer_training.progress import track

NGRAMS_PER_BLOCK = 200_000
"""Number of n-grams to format in memory before writing them."""
READ_SIZE_BYTES = 1 << 24
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


@dataclass(frozen=True, slots=True)
class ArpaOrder:
    """The n-grams of one order, in file order."""

    ids: np.ndarray
    """(N, n) int32 word ids; the id of a word is the position of its unigram in the file."""
    log10_prob: np.ndarray
    """(N,) float64."""
    log10_backoff: np.ndarray
    """(N,) float64; 0 for lines without a back-off weight."""


def read_arpa_arrays(path: Path, progress: str = "") -> tuple[list[str], list[ArpaOrder]]:
    """Read an ARPA file, gzip or plain, into arrays.

    Args:
        progress: description under which progress is reported; empty for no report.

    Returns:
        The words of the unigrams, and the n-grams of every order.

    Raises:
        FormatError: the file is not an ARPA file or has an invalid line; the error
            names the file and, if known, the line.
    """
    ids: dict[bytes, int] = {}
    blocks: list[list[ArpaOrder]] = []
    for number, order, lines in _read_ngram_lines(path, progress):
        if order > len(blocks):
            blocks.append([])
        try:
            blocks[-1].append(_parse_ngrams(lines, order, ids))
        except (ValueError, KeyError):
            raise _find_bad_line(path, lines, order, ids, number) from None
    if not blocks:
        raise FormatError("no n-grams; expected an ARPA file", file=str(path))
    return [word.decode("utf-8", "replace") for word in ids], [
        ArpaOrder(*(np.concatenate([getattr(part, name) for part in parts]) for name in ArpaOrder.__slots__))
        for parts in blocks
    ]


def _read_ngram_lines(path: Path, progress: str) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield the number of the line before each block, the order of its n-grams, and the block of lines."""
    number, order = 0, 0
    try:
        with track(progress, "lines") as task, open(path, "rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_gzip else raw
            for lines in _read_line_blocks(stream):
                headings = [i for i, line in enumerate(lines) if line.startswith(b"\\")]
                for begin, end in zip([-1, *headings], [*headings, len(lines)], strict=True):
                    if begin >= 0:
                        heading = lines[begin].strip()
                        if heading == b"\\end\\":
                            return
                        order = 0 if heading == b"\\data\\" else int(heading[1:].partition(b"-")[0])
                    ngrams = [line for line in lines[begin + 1 : end] if line and not line.isspace()]
                    if order and ngrams:
                        yield number + begin + 1, order, ngrams
                number += len(lines)
                task.advance(len(lines))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise FormatError(f"cannot be read as an ARPA file: {error}", file=str(path)) from None
    raise FormatError("no \\end\\ line; expected a complete ARPA file", file=str(path))


def _read_line_blocks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield blocks of complete lines; far faster than iterating over the lines of a gzip stream."""
    rest = b""
    while data := stream.read(READ_SIZE_BYTES):
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        yield lines
    if rest:
        yield [rest]


def _parse_ngrams(lines: list[bytes], order: int, ids: dict[bytes, int]) -> ArpaOrder:
    """Parse lines of one order; the words of unigrams are added to ``ids``.

    Raises:
        ValueError, KeyError: a line is invalid or has an unknown word.
    """
    tokens = b" ".join(lines).split()
    n_backoffs = len(tokens) - len(lines) * (order + 1)
    if n_backoffs not in (0, len(lines)):  # some lines have a back-off weight and some do not
        rows = [line.split() for line in lines]
        if any(len(row) - order not in (1, 2) for row in rows):
            raise ValueError("wrong number of columns")
        tokens = [token for row in rows for token in (*row, b"0")[: order + 2]]
        n_backoffs = len(lines)
    step = order + 1 + (n_backoffs > 0)
    if order == 1:
        n_before, new = len(ids), tokens[1::step]
        ids.update(zip(new, range(n_before, n_before + len(new)), strict=True))
        if len(ids) != n_before + len(new):
            raise ValueError("duplicate unigram")
    words = [np.fromiter(map(ids.__getitem__, tokens[i::step]), np.int32) for i in range(1, order + 1)]
    log10_prob = np.fromiter(map(float, tokens[::step]), np.float64)
    backoff = (
        np.zeros(len(lines)) if not n_backoffs else np.fromiter(map(float, tokens[step - 1 :: step]), float)
    )
    return ArpaOrder(np.stack(words, axis=1), log10_prob, backoff)


def _find_bad_line(
    path: Path, lines: list[bytes], order: int, ids: dict[bytes, int], number: int
) -> FormatError:
    """Return an error for the first line that cannot be parsed by itself."""
    for line_number, line in enumerate(lines, start=number + 1):
        try:
            _parse_ngrams([line], order, {} if order == 1 else ids)
        except (ValueError, KeyError):
            text = line.decode("utf-8", "replace").strip()
            return FormatError(
                f"expected a {order}-gram of words in this file, got {text!r}",
                file=str(path),
                line=line_number,
            )
    return FormatError(f"a {order}-gram occurs twice", file=str(path))


def read_arpa(path: Path) -> list[dict[tuple[str, ...], tuple[float, float]]]:
    """Read an ARPA file, gzip or plain, into one dictionary per order.

    Meant for tests and tools: a large model would need too much memory.

    Returns:
        The log10 probability and log10 back-off weight of each n-gram; the weight is 0 if the file has none.

    Raises:
        FormatError: the file is not an ARPA file or its header has other counts; names the file and the line.
    """
    announced: dict[int, int] = {}
    orders: list[dict[tuple[str, ...], tuple[float, float]]] = []
    for number, raw in enumerate(read_lines(path), start=1):
        line = raw.strip()
        if line == "\\end\\":
            if [len(order) for order in orders] != list(announced.values()):
                raise FormatError(
                    f"the header announces {list(announced.values())} n-grams per order, "
                    f"the file has {[len(order) for order in orders]}",
                    file=str(path),
                    line=number,
                )
            return orders
        if line.startswith("ngram ") and not orders:
            n, _, size = line.removeprefix("ngram ").partition("=")
            announced[int(n)] = int(size)
        elif line == f"\\{len(orders) + 1}-grams:":
            orders.append({})
        elif line and orders:
            log10_prob, *words = line.split()
            try:
                log10_backoff = float(words.pop()) if len(words) > len(orders) else 0.0
                orders[-1][tuple(words)] = float(log10_prob), log10_backoff
            except ValueError:
                raise FormatError(f"expected an n-gram, got {line!r}", file=str(path), line=number) from None
    raise FormatError("no \\end\\ line; expected a complete ARPA file", file=str(path))
