"""Measure the columns of a parquet file from its footer and the headers of its pages.

If pyarrow is asked for a column that a damaged footer describes inconsistently, it ends the process instead
of raising an error (https://github.com/apache/arrow/issues/45283). The few fields that are needed are
therefore read here. When pyarrow decompresses the columns, it must see the same values, or they could be
larger than was measured: a file that pyarrow might read differently is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

HEADER_BYTES = 1 << 12
MAX_HEADER_BYTES = 1 << 20
"""Longest header of a page that is read; nearly all headers are shorter than ``HEADER_BYTES``."""
MARGIN_BYTES = 100
"""pyarrow reads up to this many bytes after a column, too, if the footer names an old writer: PARQUET-816."""
I32, I64, TEXT, LIST, STRUCT = 5, 6, 8, 9, 12
INTEGER_BITS = {4: 16, I32: 32, I64: 64}
PAGE_TYPE, PAGE_BYTES, COMPRESSED_PAGE_BYTES = 1, 2, 3
DATA_PAGES = {0: 5, 3: 8}
"""The field that describes a data page of version 1 or 2, by type of page. Its first field counts values."""
PAGE_HEADER = dict.fromkeys((PAGE_TYPE, PAGE_BYTES, COMPRESSED_PAGE_BYTES), I32) | {5: {1: I32}, 8: {1: I32}}
N_VALUES, COMPRESSED_BYTES, DATA_OFFSET, DICTIONARY_OFFSET = 5, 7, 9, 11
COLUMN = dict.fromkeys((N_VALUES, COMPRESSED_BYTES, DATA_OFFSET, DICTIONARY_OFFSET), I64) | {
    **{2: [I32], 3: [TEXT], 8: [STRUCT], 13: [STRUCT], 16: {2: [I64], 3: [I64]}, 17: {2: [I32]}}
}
ROW_GROUP = {1: [{3: COLUMN, 8: {2: {1: [TEXT]}}}], 4: [STRUCT]}
FOOTER = {2: [STRUCT], 4: [ROW_GROUP], 5: [STRUCT], 7: [STRUCT]}
"""The fields of a footer that are needed, by their numbers in parquet.thrift of parquet-format; and
all lists, because pyarrow ignores the kind that a list states for its items."""
Chunk = Mapping[int, Any]
"""One column in one row group: the values of the fields ``N_VALUES`` to ``DICTIONARY_OFFSET``."""


class DamagedData(ValueError):
    """The footer, or the header of a page, cannot be read."""


@dataclass(frozen=True, slots=True)
class ColumnSize:
    """The size of one column in one row group."""

    name: str
    is_repeated: bool
    """Whether a row may have any number of values in this column, as in an array."""
    compressed_bytes: int
    n_bytes: int
    """Decompressed bytes of all pages."""
    largest_bytes: int
    """Decompressed bytes of the largest page."""
    n_values: int


def measure_columns(
    stream: BinaryIO, schema: Any, chunks: Sequence[Chunk], names: Sequence[str]
) -> Iterator[ColumnSize]:
    """Yield the sizes of some columns of a row group, according to the headers of their pages.

    Args:
        schema: the schema of the file, as pyarrow reads it.
        chunks: all columns of the row group, from ``read_row_groups``.
        names: names of columns of the table. A column of objects is stored as several columns, each of which
            is measured.

    Raises:
        DamagedData: a header cannot be read, or the footer has no valid place for a column.
    """
    if len(chunks) != len(schema):
        raise DamagedData(f"it has {len(chunks)} columns; the schema has {len(schema)}")
    wanted, lengths = frozenset(names), {len(name) for name in names}
    for index, chunk in enumerate(chunks):
        path = schema.column(index).path
        if any(path[:n] in wanted and path[n : n + 1] in ("", ".") for n in lengths):
            yield _measure(stream, path, chunk, schema.column(index).max_repetition_level > 0)


def _measure(stream: BinaryIO, path: str, chunk: Chunk, is_repeated: bool) -> ColumnSize:
    numbers = N_VALUES, DATA_OFFSET, COMPRESSED_BYTES
    expected_values, offset, compressed_bytes = (_count(chunk, number) for number in numbers)
    if 0 < chunk.get(DICTIONARY_OFFSET, 0) < offset:
        offset = chunk[DICTIONARY_OFFSET]
    end = offset + compressed_bytes
    n_bytes = largest_bytes = n_values = 0
    while n_values < expected_values and offset < end + MARGIN_BYTES:  # where pyarrow ends, too
        try:
            page = _read_page(stream, offset, end + MARGIN_BYTES)
        except DamagedData:
            if offset < end:
                raise
            break  # the column has fewer values, which pyarrow allows
        n_bytes += page.n_bytes
        largest_bytes = max(largest_bytes, page.n_bytes)
        n_values += page.n_values
        offset += page.stored_bytes
    return ColumnSize(path, is_repeated, compressed_bytes, n_bytes, largest_bytes, n_values)


@dataclass(frozen=True, slots=True)
class _Page:
    n_bytes: int
    n_values: int
    stored_bytes: int
    """Bytes in the file, with the header."""


def _read_page(stream: BinaryIO, offset: int, end: int) -> _Page:
    header, header_bytes = _read_header(stream, offset, end)
    field = DATA_PAGES.get(_count(header, PAGE_TYPE))
    n_values = _count(header.get(field, {}), 1) if field else 0
    stored_bytes = header_bytes + _count(header, COMPRESSED_PAGE_BYTES)
    return _Page(_count(header, PAGE_BYTES), n_values, stored_bytes)


def _count(fields: Chunk, number: int) -> int:
    """Return the value of a field that counts something; raise DamagedData if it is missing or negative."""
    value = fields.get(number, -1)
    if value < 0:
        raise DamagedData("a size or an offset is missing or negative")
    return int(value)


def _read_header(stream: BinaryIO, offset: int, end: int) -> tuple[dict[int, Any], int]:
    """Read the header of a page at an offset. Return its fields by their numbers, and its length in bytes."""
    for n_bytes in (HEADER_BYTES, MAX_HEADER_BYTES):
        stream.seek(offset)
        reader = _CompactReader(stream.read(min(n_bytes, end - offset)))
        try:
            return reader.read_struct(PAGE_HEADER), reader.position
        except IndexError:  # it is longer
            continue
        except (RecursionError, ValueError):
            break
    raise DamagedData("the header of a page cannot be read")


def read_row_groups(footer: bytes) -> list[list[Chunk]]:
    """Read the columns of each row group from a footer, in the order of the schema.

    Raises:
        DamagedData: the footer cannot be read.
    """
    try:
        groups = _CompactReader(footer).read_struct(FOOTER).get(4, [])
    except (IndexError, RecursionError, ValueError):
        raise DamagedData("the footer cannot be read") from None
    return [[column.get(3, {}) for column in group.get(1, [])] for group in groups]


class _CompactReader:
    """Reads Thrift's compact protocol, in which footers and the headers of pages are written.

    The kinds of values are: 1 true, 2 false, 3 byte, 4 to 6 integers, 7 double, 8 text, 9 list, 10 set and
    12 struct (doc/specs/thrift-compact-protocol.md of Thrift). Each value takes at least one byte, so reading
    ends when the content does, with an IndexError. What pyarrow might read differently, such as a field that
    occurs twice, is a ValueError.
    """

    def __init__(self, content: bytes) -> None:
        self.position = 0
        self._content = content

    def read_struct(self, known: Mapping[int, Any]) -> dict[int, Any]:
        """Return the known fields of a struct by their numbers.

        Args:
            known: what each field must be: a kind of integers; the known fields of a struct; a list with the
                known fields of each item; or a list with the kind of items that are skipped.
        """
        fields: dict[int, Any] = {}
        number = 0
        while head := self._read_byte():
            number = number + (head >> 4) if head >> 4 else self._read_integer(4)
            if number in fields or number >= 1 << 15:
                raise ValueError(f"the field {number} occurs twice, or is too large")
            if number in known:
                fields[number] = self._read_value(head & 15, known[number])
            else:
                self._skip_value(head & 15)
        return fields

    def _read_value(self, kind: int, expected: Any) -> Any:
        if kind == expected:
            return self._read_integer(kind)
        if kind == STRUCT and isinstance(expected, dict):
            return self.read_struct(expected)
        if kind == LIST and isinstance(expected, list):
            return self._read_list(expected[0])
        raise ValueError(f"a field has the kind {kind}")

    def _read_list(self, expected: Any) -> list[dict[int, Any]]:
        """Return the items of a list if they are structs with known fields; otherwise skip them."""
        kind, count = self._read_list_head()
        is_known = isinstance(expected, dict)
        if count and kind != (STRUCT if is_known else expected):
            raise ValueError(f"the items of a list have the kind {kind}")
        if is_known:
            return [self.read_struct(expected) for _ in range(count)]
        for _ in range(count):
            self._skip_value(kind)
        return []

    def _read_list_head(self) -> tuple[int, int]:
        """Read the kind and the number of the items of a list."""
        head = self._read_byte()
        return head & 15, head >> 4 if head >> 4 != 15 else self._read_varint(32)

    def _skip_value(self, kind: int) -> None:
        if kind in INTEGER_BITS:
            while self._content[self.position] > 127:
                self.position += 1
            self.position += 1
        elif kind == TEXT:
            self._skip_bytes(self._read_varint(32))
        elif kind == STRUCT:
            self.read_struct({})
        elif kind in (LIST, 10):
            kind, count = self._read_list_head()
            for _ in range(count):
                self._skip_bytes(1) if kind in (1, 2) else self._skip_value(kind)
        elif kind in (3, 7):
            self._skip_bytes(1 if kind == 3 else 8)
        elif kind not in (1, 2):
            raise ValueError(f"there is no kind {kind}")

    def _skip_bytes(self, n_bytes: int) -> None:
        self.position += n_bytes
        if self.position > len(self._content):
            raise IndexError(self.position)

    def _read_byte(self) -> int:
        value = self._content[self.position]
        self.position += 1
        return value

    def _read_varint(self, n_bits: int) -> int:
        value = 0
        for shift in range(0, n_bits, 7):
            byte = self._read_byte()
            value |= (byte & 127) << shift
            if byte < 128 and value < 1 << n_bits:
                return value
        raise ValueError("a number is too long")

    def _read_integer(self, kind: int) -> int:
        value = self._read_varint(INTEGER_BITS[kind])
        return (value >> 1) ^ -(value & 1)
