"""Read rows of a table a few at a time, in memory that is bounded whatever a file expands to.

In a file of a few kilobytes, a page, a row, or a text that many rows repeat may become gigabytes. Pages are
measured before they are decompressed, and texts stay references to distinct ones until their size is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from rescorer.formats.io.text_io import MAX_LINE_VARIABLE, max_line_bytes
from rescorer.formats.tables.pages import ColumnSize, measure_columns

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 64
"""Rows that are in memory at a time, besides the compressed columns of their row group; fewer if they are
large."""
MIN_BYTES = 1 << 21
"""What writers put into a page, whatever the largest length of a line."""
PAGE_LINES = 4
"""Largest page, in lines of the largest length: a page has the texts of several rows."""
MAX_EXPANSION = 256
"""How many times its compressed size a repeated column may have, if that is larger than a page may be."""


class TooLarge(ValueError):
    """A row group would take too much memory."""


@dataclass(frozen=True, slots=True)
class OversizedRow:
    """Stands for a row that is longer than a line may be."""


@dataclass(frozen=True, slots=True)
class Table:
    """An open table, in which texts are read as references to distinct ones."""

    schema: pa.Schema
    """The columns, with the types that they have if texts stand in place of references."""
    _stream: BinaryIO
    _file: Any

    @property
    def n_groups(self) -> int:
        """Number of row groups."""
        return int(self._file.num_row_groups)

    def count_rows(self, group: int) -> int:
        """Number of rows of a row group."""
        return int(self._file.metadata.row_group(group).num_rows)

    def read_batches(self, group: int, names: Iterable[str]) -> Iterator[pa.RecordBatch | OversizedRow]:
        """Yield the rows of a row group, with the columns of some names.

        Raises:
            TooLarge, DamagedPage, OSError, pyarrow.ArrowException: there are no more rows that can be read.
        """
        columns = list(names)
        n_rows = self._count_batch_rows(group, columns)
        for batch in self._file.iter_batches(n_rows, row_groups=[group], columns=columns, use_threads=False):
            yield from self._expand(batch)

    def _count_batch_rows(self, group: int, columns: list[str]) -> int:
        """How many rows are read at a time: about as many bytes as one row may have."""
        n_bytes = largest_bytes = 0
        for size in measure_columns(self._stream, self._file.metadata, group, columns):
            _check_size(size)
            n_bytes += size.n_bytes
            largest_bytes = max(largest_bytes, size.largest_bytes)
        row_bytes = max(1, largest_bytes, n_bytes // max(1, self.count_rows(group)))
        return min(BATCH_ROWS, max(1, max_line_bytes() // row_bytes))

    def _expand(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | OversizedRow]:
        """Put texts in place of references, one row after another if all together are too large."""
        import pyarrow as pa

        if sum(map(count_bytes, batch.columns)) <= max_line_bytes():
            names = batch.schema.names
            columns = [_spell_out(batch.column(name), self.schema.field(name).type) for name in names]
            yield pa.RecordBatch.from_arrays(columns, names)
        elif batch.num_rows == 1:
            yield OversizedRow()
        else:
            for index in range(batch.num_rows):
                yield from self._expand(batch.slice(index, 1))


def open_table(stream: BinaryIO) -> Table:
    """Open a table.

    Raises:
        OSError, pyarrow.ArrowException: it is not a parquet file.
    """
    from pyarrow import parquet

    metadata = parquet.read_metadata(stream)
    columns = map(metadata.schema.column, range(metadata.num_columns))
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    file = parquet.ParquetFile(stream, metadata=metadata, read_dictionary=texts)
    return Table(metadata.schema.to_arrow_schema(), stream, file)


def _check_size(size: ColumnSize) -> None:
    """Raise TooLarge if a column could take too much memory; one row may have all of a repeated one."""
    problem, limit = "", max(max_line_bytes(), MIN_BYTES)
    page_bytes = PAGE_LINES * limit
    if size.largest_bytes > page_bytes:
        problem = f"has a page of {size.largest_bytes:,} bytes, at most {page_bytes:,} are read"
    elif size.is_repeated and size.n_bytes > max(page_bytes, MAX_EXPANSION * size.compressed_bytes):
        problem = (
            f"expands from {size.compressed_bytes:,} to {size.n_bytes:,} bytes, at most {MAX_EXPANSION} "
            "times as many are read"
        )
    elif size.is_repeated and size.n_values > limit:
        problem = f"has {size.n_values:,} values, at most {limit:,} are read: write smaller row groups"
    if problem:
        raise TooLarge(f"the column {size.name} {problem}; set {MAX_LINE_VARIABLE} to allow more")


def _spell_out(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Put texts in place of references, where pyarrow can; others are only slower to read."""
    import pyarrow as pa

    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:
        return array


def count_bytes(array: pa.Array) -> int:
    """Size of an array with its texts in place of references."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(array.type):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return 4 * len(array) + (compute.sum(lengths).as_py() or 0)
    if pa.types.is_struct(array.type):
        return sum(map(count_bytes, array.flatten()))
    if pa.types.is_map(array.type):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = (part.slice(first, last - first) for part in (array.keys, array.items))
        return 4 * len(array) + sum(map(count_bytes, parts))
    if pa.types.is_nested(array.type):
        return 4 * len(array) + count_bytes(array.flatten())
    return int(array.nbytes)
