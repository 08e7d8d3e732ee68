"""Owns ARPA files: writing a model fast, and reading one back, as arrays fast or as plain dictionaries."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np
from tqdm import tqdm

from rescorer.errors import FormatError
from rescorer_training.data.corpus import read_lines

LINES_AT_ONCE = 200_000
"""N-grams formatted in memory before they are written."""
BYTES_AT_ONCE = 1 << 24
"""Of a file, parsed together."""
GZIP_LEVEL = 4
"""Twice as fast as gzip's own 6 on these files, and a few per cent larger."""
SMALLEST_LOG10 = -99.0
"""What ARPA files write for a probability of zero."""


class NGramTable(Protocol):
    """What is written of one order."""

    @property
    def prefix(self) -> np.ndarray:
        """(N,) row of w_1 … w_{n-1} one order lower."""

    @property
    def word(self) -> np.ndarray:
        """(N,) id of w_n."""

    @property
    def prob(self) -> np.ndarray:
        """(N,) float64 P(w_n | w_1 … w_{n-1})."""

    @property
    def backoff(self) -> np.ndarray:
        """(N,) float64 weight of the shorter context."""

    def __len__(self) -> int: ...


def write_arpa(path: Path, model: Sequence[NGramTable], vocabulary: Sequence[str]) -> None:
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


def _lines(tables: Sequence[NGramTable], vocabulary: Sequence[str], with_backoff: bool) -> Iterator[str]:
    """The n-grams of the last of ``tables``, some at a time; the orders below spell their prefixes."""
    top = tables[-1]
    spelling = np.array(vocabulary, dtype=object)
    form = "%.6f\t" + " ".join(["%s"] * len(tables)) + ("\t%.6f\n" if with_backoff else "\n")
    for start in range(0, len(top), LINES_AT_ONCE):
        rows: np.ndarray = np.arange(start, min(start + LINES_AT_ONCE, len(top)))
        columns = [log10(top.backoff[rows]).tolist()] if with_backoff else []
        prob = np.minimum(log10(top.prob[rows]), 0.0).tolist()
        for table in reversed(tables):
            columns.insert(0, spelling[table.word[rows]].tolist())
            rows = table.prefix[rows]
        yield "".join([form % line for line in zip(prob, *columns, strict=True)])


def log10(probs: np.ndarray) -> np.ndarray:
    """Base-10 logarithms as ARPA files write them: ``SMALLEST_LOG10`` for zero."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log10(probs), SMALLEST_LOG10)


@dataclass(frozen=True, slots=True)
class ArpaOrder:
    """The n-grams of one order as they stand in the file."""

    ids: np.ndarray
    """(N, n) int32 words by the places of their unigrams in the file."""
    log10_prob: np.ndarray
    """(N,) float64."""
    log10_backoff: np.ndarray
    """(N,) float64; 0 where none is written."""


def read_orders(path: Path, progress: str = "") -> tuple[list[str], list[ArpaOrder]]:
    """Reads an ARPA file, gzip or plain, into arrays: the words of the unigrams, and every order's n-grams.

    Raises:
        FormatError: not an ARPA file, or a line of it is none; names the file and, where it can, the line.
    """
    ids: dict[bytes, int] = {}
    blocks: list[list[ArpaOrder]] = []
    for number, order, lines in _sections(path, progress):
        if order > len(blocks):
            blocks.append([])
        try:
            blocks[-1].append(_parse(lines, order, ids))
        except (ValueError, KeyError):
            raise _first_bad_line(path, lines, order, ids, number) from None
    if not blocks:
        raise FormatError("no n-grams in it; expected an ARPA file", file=str(path))
    return [word.decode("utf-8", "replace") for word in ids], [
        ArpaOrder(*(np.concatenate([getattr(part, name) for part in parts]) for name in ArpaOrder.__slots__))
        for parts in blocks
    ]


def _sections(path: Path, progress: str) -> Iterator[tuple[int, int, list[bytes]]]:
    """Number of the line before, order, and lines with n-grams of that order, some at a time."""
    number, order = 0, 0
    bar = tqdm(desc=progress, unit=" lines", unit_scale=True, disable=None if progress else True, leave=False)
    try:
        with bar, open(path, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
            for lines in _blocks(stream):
                marks = [i for i, line in enumerate(lines) if line.startswith(b"\\")]
                for begin, end in zip([-1, *marks], [*marks, len(lines)], strict=True):
                    if begin >= 0:
                        name = lines[begin].strip()
                        if name == b"\\end\\":
                            return
                        order = 0 if name == b"\\data\\" else int(name[1:].partition(b"-")[0])
                    chosen = [line for line in lines[begin + 1 : end] if line and not line.isspace()]
                    if order and chosen:
                        yield number + begin + 1, order, chosen
                number += len(lines)
                bar.update(len(lines))
    except (OSError, EOFError, ValueError, zlib.error) as fault:
        raise FormatError(f"cannot be read as an ARPA file: {fault}", file=str(path)) from None
    raise FormatError("no \\end\\ in it; expected a whole ARPA file", file=str(path))


def _blocks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Whole lines, some at a time; far faster than the lines of a gzip stream one by one."""
    rest = b""
    while data := stream.read(BYTES_AT_ONCE):
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        yield lines
    if rest:
        yield [rest]


def _parse(lines: list[bytes], order: int, ids: dict[bytes, int]) -> ArpaOrder:
    """Some lines of one order; unigrams enter ``ids``. Raises ValueError or KeyError at a bad line."""
    tokens = b" ".join(lines).split()
    n_backoffs = len(tokens) - len(lines) * (order + 1)
    if n_backoffs not in (0, len(lines)):  # some lines have a back-off and some have not
        columns = [line.split() for line in lines]
        if any(len(each) - order not in (1, 2) for each in columns):
            raise ValueError("columns")
        tokens = [token for each in columns for token in (*each, b"0")[: order + 2]]
        n_backoffs = len(lines)
    step = order + 1 + (n_backoffs > 0)
    if order == 1:
        n_before, new = len(ids), tokens[1::step]
        ids.update(zip(new, range(n_before, n_before + len(new)), strict=True))
        if len(ids) != n_before + len(new):
            raise ValueError("twice")
    words = [np.fromiter(map(ids.__getitem__, tokens[i::step]), np.int32) for i in range(1, order + 1)]
    log10_prob = np.fromiter(map(float, tokens[::step]), np.float64)
    backoff = (
        np.zeros(len(lines)) if not n_backoffs else np.fromiter(map(float, tokens[step - 1 :: step]), float)
    )
    return ArpaOrder(np.stack(words, axis=1), log10_prob, backoff)


def _first_bad_line(
    path: Path, lines: list[bytes], order: int, ids: dict[bytes, int], number: int
) -> FormatError:
    """What is wrong with the first line that cannot be parsed by itself."""
    for i, line in enumerate(lines, start=number + 1):
        try:
            _parse([line], order, {} if order == 1 else ids)
        except (ValueError, KeyError):
            text = line.decode("utf-8", "replace").strip()
            return FormatError(f"{text!r} is no {order}-gram of this file's words", file=str(path), line=i)
    return FormatError(f"a {order}-gram stands in it twice", file=str(path))


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
