"""Say how much memory the pages of a row group take, before any is decompressed.

Sizes in the footer of a file may be wrong, since nothing that decompresses uses them. The header of each page
says how many bytes the page becomes, and how many values; pyarrow makes room for exactly these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

HEADER_BYTES = 1 << 12
MAX_HEADER_BYTES = 1 << 20
"""Longest header of a page; nearly all are shorter than ``HEADER_BYTES``."""
MAX_VARINT_BYTES = 10
DATA_PAGES = 5, 8
"""Fields of a page's header that describe data, of version 1 or 2; the first field of both counts values."""


class DamagedPage(ValueError):
    """The header of a page cannot be read."""


@dataclass(frozen=True, slots=True)
class ColumnSize:
    """What a column of a row group becomes in memory."""

    name: str
    is_repeated: bool
    """Whether a row may have any number of values."""
    compressed_bytes: int
    n_bytes: int
    """Bytes of all pages, decompressed."""
    largest_bytes: int
    """Bytes of the largest page, decompressed."""
    n_values: int


def measure_columns(
    stream: BinaryIO, metadata: Any, group: int, names: Sequence[str]
) -> Iterator[ColumnSize]:
    """Read the headers of all pages of some columns of a row group.

    Args:
        metadata: what pyarrow has read from the footer of the file.
        names: names of the columns of the table; they may have columns inside, each of which is measured.

    Raises:
        DamagedPage: a header cannot be read.
    """
    for index in range(metadata.num_columns):
        path = metadata.schema.column(index).path
        if any(path == name or path.startswith(f"{name}.") for name in names):
            is_repeated = metadata.schema.column(index).max_repetition_level > 0
            yield _measure(stream, metadata.row_group(group).column(index), is_repeated)


def _measure(stream: BinaryIO, column: Any, is_repeated: bool) -> ColumnSize:
    offset, end = _find_bytes(column)
    n_bytes = largest_bytes = n_values = 0
    while n_values < column.num_values and offset < end:  # where pyarrow ends, too
        header, header_bytes = _read_header(stream, offset, end)
        data = next((header[field] for field in DATA_PAGES if field in header), {1: 0})
        expanded_bytes, page_bytes = _count(header, 2), _count(header, 3)
        n_bytes += expanded_bytes
        largest_bytes = max(largest_bytes, expanded_bytes)
        n_values += _count(data, 1)
        offset += header_bytes + page_bytes
    compressed_bytes = column.total_compressed_size
    return ColumnSize(column.path_in_schema, is_repeated, compressed_bytes, n_bytes, largest_bytes, n_values)


def _count(fields: Any, number: int) -> int:
    """The number in a field; raises DamagedPage if it has none, or a negative one."""
    value = fields.get(number) if isinstance(fields, dict) else None
    if type(value) is not int or value < 0:
        raise DamagedPage("the header of a page lacks a size")
    return value


def _find_bytes(column: Any) -> tuple[int, int]:
    """Where the pages of a column begin and end in the file."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    return start, start + column.total_compressed_size


def _read_header(stream: BinaryIO, offset: int, end: int) -> tuple[dict[int, Any], int]:
    """Read a header; return its fields by their numbers, and its length."""
    for n_bytes in (HEADER_BYTES, MAX_HEADER_BYTES):
        stream.seek(offset)
        reader = _CompactReader(stream.read(min(n_bytes, end - offset)))
        try:
            return reader.read_struct(), reader.position
        except IndexError:  # it is longer
            continue
        except (RecursionError, ValueError):
            break
    raise DamagedPage("the header of a page cannot be read")


class _CompactReader:
    """Reads Thrift's compact protocol, in which headers are written; texts are skipped.

    Kinds of values: 1 and 2 true and false, 3 byte, 4 to 6 integers, 7 double, 8 text, 9 and 10 list and set,
    12 struct (doc/specs/thrift-compact-protocol.md of Thrift). Each takes at least one byte, so that reading
    ends with the content.
    """

    def __init__(self, content: bytes) -> None:
        self.position = 0
        self._content = content

    def read_struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._read_byte():
            number = number + (head >> 4) if head >> 4 else self._read_integer()
            fields[number] = self._read_value(head & 15)
        return fields

    def _read_value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._read_byte()
        if kind in (4, 5, 6):
            return self._read_integer()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._read_varint())
        if kind in (9, 10):
            return self._skip_list()
        if kind == 12:
            return self.read_struct()
        raise ValueError(f"there is no type {kind} in headers")

    def _skip_list(self) -> None:
        head = self._read_byte()
        count = head >> 4 if head >> 4 != 15 else self._read_varint()
        for _ in range(count):
            self._skip(1) if head & 15 in (1, 2) else self._read_value(head & 15)

    def _skip(self, n_bytes: int) -> None:
        self.position += n_bytes
        if self.position > len(self._content):
            raise IndexError(self.position)

    def _read_byte(self) -> int:
        value = self._content[self.position]
        self.position += 1
        return value

    def _read_varint(self) -> int:
        value = 0
        for index in range(MAX_VARINT_BYTES):
            byte = self._read_byte()
            value |= (byte & 127) << (7 * index)
            if byte < 128:
                return value
        raise ValueError("a number is too long")

    def _read_integer(self) -> int:
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)
