"""Write and map n-gram tables: the files described in docs/reference/ngram-tables.md.

A file is a header and sections, each starting at a multiple of ``ALIGNMENT`` bytes: the words, the unigrams,
and for every higher order its pilots and its records; then, if its words are names of classes, the words of
the classes. The header's sizes determine where each section lies and how long the file is.
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
from rescorer.lm.ngrams.table_model import TableContent
from rescorer.lm.ngrams.units import ClassMembers

SUFFIX = ".ngram"
MAGIC = b"rescorer n-gram\n"
WORDS_VERSION, UNITS_VERSION = 1, 2
"""Version of models of contiguous words, and of all others, whose header says more."""
START = struct.Struct("<16sIIQQ")
"""Magic, version, order, number of words, bytes of all words."""
ORDER = struct.Struct("<QQII")
"""Number of n-grams, number of slots, logarithm of the number of pilots to base 2, seed."""
UNITS = struct.Struct("<IIQQ")
"""In version 2: words of the gap, whether there are classes, number of their words, bytes of those words."""
ALIGNMENT = 64
MAX_ROWS = (1 << 31) - 1
"""Largest number of words, and of slots of an order; keys of two such numbers fit into 63 bits."""
MAX_BUCKET_BITS = 31
MAX_SKIP = 10


class OrderSizes(NamedTuple):
    """What the header says of one order above 1."""

    n_ngrams: int
    n_slots: int
    bucket_bits: int
    seed: int


class UnitSizes(NamedTuple):
    """What the header says of units other than contiguous words."""

    skip: int = 0
    has_classes: int = 0
    n_members: int = 0
    member_bytes: int = 0


class TableHeader(NamedTuple):
    """The header of a file."""

    n_units: int
    """Words or classes, including ``<unk>``, ``<s>`` and ``</s>``."""
    name_bytes: int
    orders: tuple[OrderSizes, ...]
    units: UnitSizes = UnitSizes()

    @property
    def version(self) -> int:
        return WORDS_VERSION if self.units == UnitSizes() else UNITS_VERSION

    @property
    def n_words(self) -> int:
        """Number of words that the model knows."""
        return self.units.n_members if self.units.has_classes else self.n_units - len(FIRST_WORDS)

    @property
    def counts(self) -> list[int]:
        """Number of n-grams per order."""
        return [self.n_units, *(order.n_ngrams for order in self.orders)]

    @property
    def section_bytes(self) -> list[int]:
        """Size of the header and of each section, without what aligns them."""
        tables = ((2 << order.bucket_bits, 16 * order.n_slots) for order in self.orders)
        header = START.size + ORDER.size * len(self.orders)
        header += UNITS.size if self.version == UNITS_VERSION else 0
        units = self.units
        members = [units.member_bytes, 4 * units.n_members, 4 * units.n_members] if units.has_classes else []
        return [header, self.name_bytes, 8 * self.n_units, *chain.from_iterable(tables), *members]

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
    data = os.pread(stream.fileno(), START.size + MAX_ORDER * ORDER.size + UNITS.size, 0)
    if len(data) < START.size or not data.startswith(MAGIC):
        raise BundleError(f"{stream.name}: does not start like an n-gram table")
    _, version, order, n_units, name_bytes = START.unpack_from(data)
    if version not in (WORDS_VERSION, UNITS_VERSION):
        raise BundleError(f"{stream.name}: has version {version} of the format; expected 1 or 2")
    end = START.size + (order - 1) * ORDER.size
    if not 1 <= order <= MAX_ORDER or len(data) < end + (UNITS.size if version == UNITS_VERSION else 0):
        raise BundleError(f"{stream.name}: order {order} in its header; expected 1 to {MAX_ORDER}")
    orders = (OrderSizes(*ORDER.unpack_from(data, offset)) for offset in range(START.size, end, ORDER.size))
    units = UnitSizes(*UNITS.unpack_from(data, end)) if version == UNITS_VERSION else UnitSizes()
    header = TableHeader(n_units, name_bytes, tuple(orders), units)
    for name, value, least, most in _list_limits(header):
        if not least <= value <= most:
            raise BundleError(f"{stream.name}: {name} is {value:,}; expected {least:,} to {most:,}")
    if version != header.version:
        raise BundleError(f"{stream.name}: has version 2 of the format, but neither a gap nor classes")
    if size != header.file_bytes:
        raise BundleError(
            f"{stream.name}: has {size:,} bytes; expected {header.file_bytes:,}, as its header says"
        )
    return header


def _list_limits(header: TableHeader) -> Iterator[tuple[str, int, int, int]]:
    """Yield each number of a header with its name, minimum and maximum."""
    yield "the number of words", header.n_units, len(FIRST_WORDS), MAX_ROWS
    for n, order in enumerate(header.orders, 2):
        yield f"the number of slots of order {n}", order.n_slots, 1, MAX_ROWS
        yield f"the number of {n}-grams", order.n_ngrams, 0, order.n_slots
        yield f"the logarithm of the number of pilots of order {n}", order.bucket_bits, 1, MAX_BUCKET_BITS
    yield "the gap", header.units.skip, 0, MAX_SKIP
    yield "the mark of classes", header.units.has_classes, 0, 1
    yield "the number of words in classes", header.units.n_members, 0, MAX_ROWS * header.units.has_classes


def map_table(stream: BinaryIO) -> TableContent:
    """Map a file into memory, which all processes that map it share.

    Raises:
        BundleError: the header or a section is invalid.
    """
    header = read_table_header(stream)
    data = mmap.mmap(stream.fileno(), header.file_bytes, access=mmap.ACCESS_READ)
    sections = iter(_slice_sections(memoryview(data), header.section_bytes))
    next(sections)
    names = _read_words(stream, bytes(next(sections)), header.n_units)
    _check_first_words(stream, names)
    unigrams = np.frombuffer(next(sections), np.float32).reshape(-1, 2)
    _check_values(stream, unigrams, 1)
    orders = []
    for n, sizes in enumerate(header.orders, 2):
        pilots = np.frombuffer(next(sections), np.uint16)
        records = np.frombuffer(next(sections), np.int64).reshape(-1, 2)
        _check_values(stream, records.view(np.float32)[:, 2:], n)
        orders.append(OrderTable(PerfectHash(sizes.seed, pilots, sizes.n_slots), records))
    members = _read_members(stream, sections, header) if header.units.has_classes else None
    return TableContent(names, NgramTable(unigrams, tuple(orders)), header.units.skip, members)


def write_table(stream: BinaryIO, content: TableContent) -> None:
    """Write a file; equal tables give equal bytes."""
    table, members = content.table, content.members
    names, words = (
        "\n".join(text).encode() for text in (content.unit_names, members.words if members else ())
    )
    orders = tuple(
        OrderSizes(
            int((order.records[:, 0] != NO_KEY).sum()),
            order.hash.n_slots,
            (len(order.hash.pilots) - 1).bit_length(),
            order.hash.seed,
        )
        for order in table.orders
    )
    units = UnitSizes(
        content.skip, int(members is not None), len(members.words) if members else 0, len(words)
    )
    header = TableHeader(len(content.unit_names), len(names), orders, units)
    start = START.pack(MAGIC, header.version, table.order, header.n_units, header.name_bytes)
    start += b"".join(ORDER.pack(*order) for order in orders)
    start += UNITS.pack(*units) if header.version == UNITS_VERSION else b""
    tables = chain.from_iterable((order.hash.pilots, order.records) for order in table.orders)
    classes = (words, members.classes, members.log10_probs) if members else ()
    sections = [start, names, table.unigrams, *tables, *classes]
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
        words = tuple(text.decode("utf-8").split("\n")) if n_words else ()
    except UnicodeDecodeError as error:
        raise BundleError(f"{stream.name}: its words are not in UTF-8 at byte {error.start:,}") from None
    if len(words) != n_words:
        raise BundleError(f"{stream.name}: has {len(words):,} words; expected {n_words:,}")
    if len(set(words)) < n_words:
        raise BundleError(f"{stream.name}: a word occurs twice among its {n_words:,} words")
    return words


def _check_first_words(stream: BinaryIO, names: tuple[str, ...]) -> None:
    if names[: len(FIRST_WORDS)] != FIRST_WORDS:
        raise BundleError(f"{stream.name}: its first words are not {', '.join(FIRST_WORDS)}")


def _read_members(stream: BinaryIO, sections: Iterator[memoryview], header: TableHeader) -> ClassMembers:
    words = _read_words(stream, bytes(next(sections)), header.n_words)
    if not set(words).isdisjoint(FIRST_WORDS):
        raise BundleError(f"{stream.name}: one of {', '.join(FIRST_WORDS)} is in a class; expected none")
    classes = np.frombuffer(next(sections), np.int32)
    log10_probs = np.frombuffer(next(sections), np.float32)
    if len(classes) and not len(FIRST_WORDS) <= classes.min() <= classes.max() < header.n_units:
        raise BundleError(f"{stream.name}: a word has a class that is not one of the {header.n_units:,}")
    if not (np.isfinite(log10_probs) & (log10_probs <= 0)).all():
        raise BundleError(
            f"{stream.name}: the log-probability of a word in its class is not finite or above 0"
        )
    return ClassMembers(words, classes, log10_probs)


def _check_values(stream: BinaryIO, values: np.ndarray, order: int) -> None:
    """Check that probabilities and back-off weights are finite, and that no probability is above 1."""
    extremes = [(column.min(), column.max()) for column in values.T]  # NaN if any value is
    if not np.isfinite(extremes).all() or extremes[0][1] > 0:
        raise BundleError(
            f"{stream.name}: order {order} has a log-probability or a back-off weight that is not finite, or "
            "a log-probability above 0"
        )
