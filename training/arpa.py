"""Owns ARPA files: writing a model fast, and reading one back as plain dictionaries."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

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
    """Writes ``model``, gzip where the name ends in ``.gz``; ``vocabulary`` has the word of each id."""
    with _open_to_write(path) as stream:
        sizes = "".join(f"ngram {n}={len(table)}\n" for n, table in enumerate(model, start=1))
        stream.write(f"\\data\\\n{sizes}".encode())
        for n in range(1, len(model) + 1):
            stream.write(f"\n\\{n}-grams:\n".encode())
            for block in _lines(model[:n], vocabulary, with_backoff=n < len(model)):
                stream.write(block.encode())
        stream.write(b"\n\\end\\\n")


def _open_to_write(path: Path) -> IO[bytes]:
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "wb", compresslevel=GZIP_LEVEL)  # type: ignore[return-value]
        return open(path, "wb")
    except OSError as fault:
        raise FormatError(f"cannot be written: {fault.strerror or fault}", file=str(path)) from None


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
        return np.clip(np.log10(probs), SMALLEST_LOG10, 0.0)
