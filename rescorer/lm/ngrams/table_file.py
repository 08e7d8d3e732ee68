"""Write and map n-gram tables: the files described in docs/reference/ngram-tables.md.

A file is a header and sections, each starting at a multiple of ``ALIGNMENT`` bytes: the words, the unigrams,
and for every higher order its pilots and its records. The header's sizes determine where each section lies
and how long the file is.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import BinaryIO, NamedTuple

import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.files.arpa import MAX_ORDER
from rescorer.lm.files.arpa_ngrams import FIRST_WORDS
from rescorer.lm.ngrams.perfect_hash import PerfectHash
from rescorer.lm.ngrams.table import NO_KEY, NgramTable, OrderTable

SUFFIX = ".ngram"
MAGIC = b"rescorer n-gram\n"
VERSION = 1
START = struct.Struct("<16sIIQQ")
"""Magic, version, order, number of words, bytes of all words."""
ORDER = struct.Struct("<QQII")
"""Number of n-grams, number of slots, logarithm of the number of pilots to base 2, seed."""
ALIGNMENT = 64
MAX_ROWS = (1 << 31) - 1
"""Largest number of words, and of slots of an order; keys of two such numbers fit into 63 bits."""
MAX_BUCKET_BITS = 31


class OrderSizes(NamedTuple):
    """What the header says of one order above 1."""

    n_ngrams: int
    n_slots: int
    bucket_bits: int
    seed: int


class TableHeader(NamedTuple):
    """The header of a file."""

    n_words: int
    """Including ``<unk>``, ``<s>`` and ``</s>``."""
    word_bytes: int
    orders: tuple[OrderSizes, ...]

    @property
    def counts(self) -> list[int]:
        """Number of n-grams per order."""
        return [self.n_words, *(order.n_ngrams for order in self.orders)]

    @property
    def section_bytes(self) -> list[int]:
        """Size of the header and of each section, without what aligns them."""
        tables = ((2 << order.bucket_bits, 16 * order.n_slots) for order in self.orders)
        header = START.size + ORDER.size * len(self.orders)
        return [header, self.word_bytes, 8 * self.n_words, *chain.from_iterable(tables)]

    @property
    def file_bytes(self) -> int:
        *before, last = self.section_bytes
        return sum(map(_align, before)) + last


def is_table_file(stream: BinaryIO) -> bool:
    """Whether an open file starts like an n-gram table."""
    return os.pread(stream.fileno(), len(MAGIC), 0) == MAGIC


def read_table_header(stream: BinaryIO) -> TableHeader:
    """Read and check the header of a file; reads nothing else.

    Raises:
        BundleError: it is not the header of such a file, or the file has another size than it says.
    """
    size = os.fstat(stream.fileno()).st_size
    data = os.pread(stream.fileno(), START.size + MAX_ORDER * ORDER.size, 0)
    if len(data) < START.size or not data.startswith(MAGIC):
        raise BundleError(f"{stream.name}: does not start like an n-gram table")
    _, version, order, n_words, word_bytes = START.unpack_from(data)
    if version != VERSION:
        raise BundleError(f"{stream.name}: has version {version} of the format; expected {VERSION}")
    if not 1 <= order <= MAX_ORDER or len(data) < START.size + (order - 1) * ORDER.size:
        raise BundleError(f"{stream.name}: order {order} in its header; expected 1 to {MAX_ORDER}")
    offsets = range(START.size, START.size + (order - 1) * ORDER.size, ORDER.size)
    header = TableHeader(
        n_words, word_bytes, tuple(OrderSizes(*ORDER.unpack_from(data, offset)) for offset in offsets)
    )
    for name, value, least, most in _list_limits(header):
        if not least <= value <= most:
            raise BundleError(f"{stream.name}: {name} is {value:,}; expected {least:,} to {most:,}")
    if size != header.file_bytes:
        raise BundleError(
            f"{stream.name}: has {size:,} bytes; expected {header.file_bytes:,}, as its header says"
        )
    return header


def _list_limits(header: TableHeader) -> Iterator[tuple[str, int, int, int]]:
    """Yield each number of a header with its name, minimum and maximum."""
    yield "the number of words", header.n_words, len(FIRST_WORDS), MAX_ROWS
    for n, order in enumerate(header.orders, 2):
        yield f"the number of slots of order {n}", order.n_slots, 1, MAX_ROWS
        yield f"the number of {n}-grams", order.n_ngrams, 0, order.n_slots
        yield f"the logarithm of the number of pilots of order {n}", order.bucket_bits, 1, MAX_BUCKET_BITS


def map_table(stream: BinaryIO) -> tuple[tuple[str, ...], NgramTable]:
    """Map a file into memory, which all processes that map it share.

    Returns:
        The word of each id, and the table.

    Raises:
        BundleError: the header or a section is invalid.
    """
    header = read_table_header(stream)
    data = mmap.mmap(stream.fileno(), header.file_bytes, access=mmap.ACCESS_READ)
    sections = iter(_slice_sections(memoryview(data), header.section_bytes))
    next(sections)
    words = _read_words(stream, bytes(next(sections)), header.n_words)
    unigrams = np.frombuffer(next(sections), np.float32).reshape(-1, 2)
    _check_values(stream, unigrams, 1)
    orders = []
    for n, sizes in enumerate(header.orders, 2):
        pilots = np.frombuffer(next(sections), np.uint16)
        records = np.frombuffer(next(sections), np.int64).reshape(-1, 2)
        _check_values(stream, records.view(np.float32)[:, 2:], n)
        orders.append(OrderTable(PerfectHash(sizes.seed, pilots, sizes.n_slots), records))
    return words, NgramTable(unigrams, tuple(orders))


def write_table(stream: BinaryIO, words: Sequence[str], table: NgramTable) -> None:
    """Write a file; equal tables give equal bytes."""
    text = "\n".join(words).encode()
    orders = tuple(
        OrderSizes(
            int((order.records[:, 0] != NO_KEY).sum()),
            order.hash.n_slots,
            (len(order.hash.pilots) - 1).bit_length(),
            order.hash.seed,
        )
        for order in table.orders
    )
    header = TableHeader(len(words), len(text), orders)
    start = START.pack(MAGIC, VERSION, table.order, header.n_words, header.word_bytes)
    tables = chain.from_iterable((order.hash.pilots, order.records) for order in table.orders)
    sections = [start + b"".join(ORDER.pack(*order) for order in orders), text, table.unigrams, *tables]
    for number, (section, size) in enumerate(zip(sections, header.section_bytes, strict=True), 1):
        stream.write(section if isinstance(section, bytes) else np.ascontiguousarray(section).data)
        if number < len(sections):
            stream.write(bytes(_align(size) - size))


def _slice_sections(data: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    begin = 0
    for size in sizes:
        yield data[begin : begin + size]
        begin += _align(size)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _read_words(stream: BinaryIO, text: bytes, n_words: int) -> tuple[str, ...]:
    try:
        words = tuple(text.decode("utf-8").split("\n"))
    except UnicodeDecodeError as error:
        raise BundleError(f"{stream.name}: its words are not in UTF-8 at byte {error.start:,}") from None
    if len(words) != n_words or words[: len(FIRST_WORDS)] != FIRST_WORDS:
        raise BundleError(
            f"{stream.name}: has {len(words):,} words; expected {n_words:,}, starting with "
            f"{', '.join(FIRST_WORDS)}"
        )
    if len(set(words)) < n_words:
        raise BundleError(f"{stream.name}: a word occurs twice among its {n_words:,} words")
    return words


def _check_values(stream: BinaryIO, values: np.ndarray, order: int) -> None:
    """Check that probabilities and back-off weights are finite, and that no probability is above 1."""
    extremes = [(column.min(), column.max()) for column in values.T]  # NaN if any value is
    if not np.isfinite(extremes).all() or extremes[0][1] > 0:
        raise BundleError(
            f"{stream.name}: order {order} has a log-probability or a back-off weight that is not finite, or "
            "a log-probability above 0"
        )
