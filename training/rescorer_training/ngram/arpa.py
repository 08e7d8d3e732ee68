"""Write n-gram models to ARPA files, and read ARPA files into arrays."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np

from rescorer.lm.files.arpa_ngrams import ArpaModel, read_arpa_ngrams
from rescorer.lm.files.word_ids import WordIds
from rescorer.safe_input.files import open_regular
from rescorer_training.progress import track

NGRAMS_PER_BLOCK = 200_000
"""Number of n-grams to format in memory before writing them."""
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


def read_arpa_arrays(path: Path, progress: str = "") -> ArpaModel:
    """Read an ARPA file, compressed or plain, into arrays with float64 values.

    Args:
        progress: description under which progress is reported; empty for no report.

    Returns:
        The words of the unigrams in the order of the file, which is that of their ids, and the n-grams of
        every order.

    Raises:
        BundleError: the file is not an ARPA file or has an invalid line.
    """
    with open_regular(path) as stream, track(progress, "lines") as task:
        return read_arpa_ngrams(stream, WordIds(), np.float64, task.advance)
