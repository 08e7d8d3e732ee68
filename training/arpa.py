"""Owns ARPA files: writing a model fast, and reading one back as plain dictionaries."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from rescorer.errors import FormatError
from training.corpus import read_lines
from training.kneser_ney import NGramProbabilities

LINES_AT_ONCE = 200_000
"""N-grams formatted in memory before they are written."""
GZIP_LEVEL = 4
"""Twice as fast as gzip's own 6 on these files, and a few per cent larger."""
SMALLEST_LOG10 = -99.0
"""What ARPA files write for a probability of zero."""


def write_arpa(path: Path, model: Sequence[NGramProbabilities], vocabulary: Sequence[str]) -> None:
    """Writes ``model``, gzip where the name ends in ``.gz``; ``vocabulary`` has the word of each id.

    Raises:
        OSError: as the file system says.
    """
    with open_output(path) as stream:
        sizes = "".join(f"ngram {n}={len(table)}\n" for n, table in enumerate(model, start=1))
        stream.write(f"\\data\\\n{sizes}".encode())
        for n in range(1, len(model) + 1):
            stream.write(f"\n\\{n}-grams:\n".encode())
            for block in _lines(model[:n], vocabulary, with_backoff=n < len(model)):
                stream.write(block.encode())
        stream.write(b"\n\\end\\\n")


def open_output(path: Path) -> BinaryIO:
    """A file to write; gzip where its name ends in ``.gz``."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "wb", compresslevel=GZIP_LEVEL))
    return open(path, "wb")


def _lines(
    tables: Sequence[NGramProbabilities], vocabulary: Sequence[str], with_backoff: bool
) -> Iterator[str]:
    """The n-grams of the last of ``tables``, some at a time; the orders below spell their prefixes."""
    top = tables[-1]
    spelling = np.array(vocabulary, dtype=object)
    form = "%.6f\t" + " ".join(["%s"] * len(tables)) + ("\t%.6f\n" if with_backoff else "\n")
    for start in range(0, len(top), LINES_AT_ONCE):
        rows: np.ndarray = np.arange(start, min(start + LINES_AT_ONCE, len(top)))
        columns = [log10(top.backoff[rows]).tolist()] if with_backoff else []
        prob = log10(top.prob[rows]).tolist()
        for table in reversed(tables):
            columns.insert(0, spelling[table.word[rows]].tolist())
            rows = table.prefix[rows]
        yield "".join([form % line for line in zip(prob, *columns, strict=True)])


def log10(probs: np.ndarray) -> np.ndarray:
    """Base-10 logarithms as ARPA files write them: none above 0, ``SMALLEST_LOG10`` for zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log10(probs), SMALLEST_LOG10, 0.0))


def read_arpa(path: Path) -> list[dict[tuple[str, ...], tuple[float, float]]]:
    """Reads an ARPA file, gzip or plain: per order, each n-gram's log10 probability and back-off (or 0).

    For tests and tools: a large model fills the memory.

    Raises:
        FormatError: not an ARPA file, or its header announces other sizes; names the file and the line.
    """
    announced: dict[int, int] = {}
    orders: list[dict[tuple[str, ...], tuple[float, float]]] = []
    for number, raw in enumerate(read_lines(path), start=1):
        line = raw.strip()
        if line == "\\end\\":
            if [len(order) for order in orders] != list(announced.values()):
                raise FormatError(
                    "the header announces other numbers of n-grams", file=str(path), line=number
                )
            return orders
        if line.startswith("ngram ") and not orders:
            n, _, size = line.removeprefix("ngram ").partition("=")
            announced[int(n)] = int(size)
        elif line == f"\\{len(orders) + 1}-grams:":
            orders.append({})
        elif line and orders:
            log_prob, *words = line.split()
            try:
                backoff = float(words.pop()) if len(words) > len(orders) else 0.0
                orders[-1][tuple(words)] = float(log_prob), backoff
            except ValueError:
                raise FormatError(f"{line!r} is no n-gram", file=str(path), line=number) from None
    raise FormatError("no \\end\\ in it; expected a whole ARPA file", file=str(path))
