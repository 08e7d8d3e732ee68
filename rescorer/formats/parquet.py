"""Read and write parquet, a format of tables in which columns are stored one after another.

A row is a list. Its hypotheses are an array of objects in one column, as in JSON lines; or they are an array
of texts, and there is a column with an array of numbers for each score stream.

A hostile file of a few kilobytes may expand to gigabytes: in one page, in one row, or in a text that many
rows repeat. Rows are therefore read a few at a time, in bounded memory. The header of each page states its
decompressed bytes and its number of values. pyarrow allocates as much as the headers say, so they are checked
before pages are decompressed. Sizes in the file's footer may be wrong, because decompression does not use
them. A column of texts is first read as distinct texts, and references to these for each row, until the size
of the whole column is known.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.common import Write, add_location
from rescorer.formats.fields import (
    LIST_FIELDS,
    FieldMap,
    PlainColumns,
    as_objects,
    phrase_records,
    utterance_records,
)
from rescorer.formats.io.folders import Lists, Sample, list_objects
from rescorer.formats.io.text_io import (
    MAX_LINE_VARIABLE,
    PARQUET_MAGIC,
    Source,
    is_parquet,
    max_line_bytes,
    open_binary_output,
    open_named,
    source_name,
)
from rescorer.formats.jsonlines import RecordParser
from rescorer.formats.parquet_sizes import Chunk, ColumnSize, DamagedData, measure_columns, read_row_groups
from rescorer.formats.table_columns import NotPlain, read_structs, read_texts
from rescorer.storage import is_object, is_url
from rescorer.types import NBestList

if TYPE_CHECKING:
    import pyarrow as pa


LISTS = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
FRACTIONS = ("floating", "decimal")
NUMBERS = ("integer", *FRACTIONS)
STRINGS = ("string", "large_string", "string_view")
TIMES = ("timestamp", "time", "date")
BATCH_ROWS = 64
"""Maximum number of rows that are decompressed at a time. If rows are large, there are fewer at a time."""
MIN_BYTES = 1 << 21
"""The limit on the bytes of a line is raised to this here, because writers make pages of about this size."""
PAGE_LINES = 4
"""Maximum size of a page, as a multiple of the longest line: a page contains the texts of several rows."""
FOOTER_END = struct.Struct("<I4s")
"""The last bytes of a file: the length of the footer, and the letters PAR1."""
FOOTER_SHARE = 16
"""Longest footer that is read, as a part of the longest line, if that is more than ``MIN_FOOTER_BYTES``."""
MIN_FOOTER_BYTES = 1 << 20
MAX_COLUMNS = 10_000
MAX_EXPANSION = 256
"""Maximum ratio of a repeated column's size to its compressed size, if it is larger than a page may be."""


class TooLarge(ValueError):
    """A row group would take too much memory."""


@dataclass(frozen=True, slots=True)
class OversizedRow:
    """Stands for a row that is longer than a line may be."""


@dataclass(frozen=True, slots=True)
class Table:
    """An open table. Columns of texts are read as distinct texts, with a reference to one of them per row."""

    schema: pa.Schema
    """The columns, with the types that they have after references have been replaced by texts."""
    _stream: BinaryIO
    _file: Any
    _groups: list[list[Chunk]]

    @property
    def n_groups(self) -> int:
        """Number of row groups."""
        return len(self._groups)

    def count_rows(self, group: int) -> int:
        """Number of rows of a row group."""
        return int(self._file.metadata.row_group(group).num_rows)

    def read_batches(self, group: int, names: Iterable[str]) -> Iterator[pa.RecordBatch | OversizedRow]:
        """Yield the rows of a row group in batches, reading only the named columns.

        Raises:
            TooLarge, DamagedData, OSError, pyarrow.ArrowException: the remaining rows cannot be read.
        """
        columns = list(names)
        n_rows = self._count_batch_rows(group, columns)
        for batch in self._file.iter_batches(n_rows, row_groups=[group], columns=columns, use_threads=False):
            yield from self._expand(batch)

    def _count_batch_rows(self, group: int, columns: list[str]) -> int:
        """Return how many rows to read at a time, so that they take at most about the limit for one row."""
        schema, limit = self._file.metadata.schema, _max_page_bytes()
        sizes = list(measure_columns(self._stream, schema, self._groups[group], columns))
        for size in sizes:
            _check_size(size)
        page_bytes = sum(size.largest_bytes for size in sizes)  # there may be a page of each column at a time
        if page_bytes > limit:
            problem = f"pages of its columns take {page_bytes:,} bytes together, at most {limit:,} are read"
            raise TooLarge(f"{problem}; set {MAX_LINE_VARIABLE} to allow more")
        n_bytes = sum(size.n_bytes for size in sizes) // max(1, self.count_rows(group))
        row_bytes = max(1, n_bytes, *(size.largest_bytes for size in sizes))
        return min(BATCH_ROWS, max(1, max_line_bytes() // row_bytes))

    def _expand(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | OversizedRow]:
        """Replace references by texts. If the batch would be too large, do so one row at a time."""
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
        TooLarge: it has too many columns, or its footer is too long.
        DamagedData: its footer is damaged.
        UnicodeDecodeError: the name of a column is not UTF-8.
        OSError, pyarrow.ArrowException: it is not a parquet file.
    """
    from pyarrow import parquet

    footer = _read_footer(stream)
    metadata = parquet.read_metadata(stream)
    if metadata.num_columns > MAX_COLUMNS:
        raise TooLarge(f"has {metadata.num_columns:,} columns; at most {MAX_COLUMNS:,} are read")
    columns = map(metadata.schema.column, range(metadata.num_columns))
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    file = parquet.ParquetFile(stream, metadata=metadata, read_dictionary=texts)
    groups = read_row_groups(footer)
    if len(groups) != metadata.num_row_groups:
        raise DamagedData("the footer cannot be read")
    return Table(metadata.schema.to_arrow_schema(), stream, file, groups)


def _read_footer(stream: BinaryIO) -> bytes:
    """Read the footer; return nothing if there is none, in which case pyarrow says what is wrong.

    Raises:
        TooLarge: it is too long, since its objects take up to a hundred times its bytes.
    """
    end = stream.seek(0, os.SEEK_END) - FOOTER_END.size
    if end < 0:
        return b""
    stream.seek(end)
    n_bytes, _ = FOOTER_END.unpack(stream.read(FOOTER_END.size))
    if n_bytes > end:
        return b""
    limit = max(MIN_BYTES, max_line_bytes()) // FOOTER_SHARE
    if n_bytes > max(MIN_FOOTER_BYTES, limit):
        raise TooLarge(
            f"has a footer of {n_bytes:,} bytes; at most {limit:,} are read: write larger row groups, or set "
            f"{MAX_LINE_VARIABLE} to allow more"
        )
    stream.seek(end - n_bytes)
    return stream.read(n_bytes)


def _max_page_bytes() -> int:
    return PAGE_LINES * max(max_line_bytes(), MIN_BYTES)


def _check_size(size: ColumnSize) -> None:
    """Raise TooLarge if a column could take too much memory. A repeated column may be in one row entirely."""
    problem, page_bytes = "", _max_page_bytes()
    limit = page_bytes // PAGE_LINES
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
    """Replace references by texts. If pyarrow cannot do so for a type, keep them, which is only slower."""
    import pyarrow as pa

    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:
        return array


def _is(kind: pa.DataType, *names: str) -> bool:
    """Whether a type passes one of pyarrow's tests, such as ``is_list`` for the name ``list``."""
    from pyarrow import types

    return any(getattr(types, f"is_{name}")(kind) for name in names)


def count_bytes(array: pa.Array) -> int:
    """Return the number of bytes of an array after references have been replaced by texts."""
    from pyarrow import compute

    if _is(array.type, "dictionary"):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return 4 * len(array) + (compute.sum(lengths).as_py() or 0)
    if _is(array.type, "struct"):
        return sum(map(count_bytes, array.flatten()))
    if _is(array.type, "map"):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = (part.slice(first, last - first) for part in (array.keys, array.items))
        return 4 * len(array) + sum(map(count_bytes, parts))
    if _is(array.type, "nested"):
        return 4 * len(array) + count_bytes(array.flatten())
    return int(array.nbytes)


TEXTS = "texts"
"""Name of the column with arrays of texts that are the hypotheses if there is no column ``hypotheses``."""
MAX_NAMES = 8
"""Maximum number of columns that an error names."""
Convert = Callable[[Any], Any]
"""Converts a value of a column to a value that JSON can hold. The value must not be null."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table that are read, and the fields that they become.

    Args:
        converters: the columns to read, by name, with the function that converts the values of each; None
            for values that stay as they are.
        names: names of the fields.
        texts: name of the column with arrays of texts; empty if hypotheses are objects.
        streams: names of columns that have arrays with one score per hypothesis.
    """

    converters: dict[str, Convert | None]
    names: FieldMap
    texts: str = ""
    streams: tuple[str, ...] = ()

    def read_rows(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Yield the rows of a batch as records; fields without a value are left out."""
        hypotheses = self._read_plain(batch)
        done = {self.texts or self.names.hypotheses, *self.streams} if hypotheses else set()
        columns = {name: self._read_column(batch, name) for name in self.converters if name not in done}
        for index in range(batch.num_rows):
            record = {name: values[index] for name, values in columns.items() if values[index] is not None}
            if hypotheses:
                record[self.names.hypotheses] = hypotheses[index] if hypotheses[index].texts else []
            yield record

    def _read_plain(self, batch: pa.RecordBatch) -> list[PlainColumns]:
        """Return the hypotheses of each row, if they can be read as columns; otherwise an empty list."""
        try:
            if not self.texts:
                return read_structs(batch, self.names.hypotheses, self.names)
            if self.names.scores in self.converters:
                return []
            return read_texts(batch, self.texts, self.streams, self.names)
        except NotPlain:
            return []

    def _read_column(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        values = _without_times(batch.column(name)).to_pylist()
        if (convert := self.converters[name]) is None:
            return values
        return [None if value is None else convert(value) for value in values]

    def join(self, record: dict[str, Any]) -> dict[str, Any]:
        """Combine the texts and the scores of a record to hypotheses; return other records unchanged.

        Raises:
            InvalidList: there are more or fewer scores in an array than texts.
        """
        if not self.texts or not isinstance(record.get(self.texts), list):
            return record
        texts = record.pop(self.texts)
        hypotheses: list[dict[str, Any]] = [{} if text is None else {self.names.text: text} for text in texts]
        list_id = "" if record.get(self.names.id) is None else str(record[self.names.id])
        for name in self.streams:
            values = record.pop(name, None)
            own_field = any(stream.field == name for stream in self.names.streams.values())
            for hypothesis, value in _pair(hypotheses, values, name, list_id):
                place = hypothesis if own_field else hypothesis.setdefault(self.names.scores, {})
                place[name] = value
        scores = record.pop(self.names.scores, None) if self.names.scores else None
        if not isinstance(scores, dict | None):
            message = "expected a struct or map of arrays beside an array of texts"
            raise InvalidList(message, list_id=list_id, field=self.names.scores)
        for name, values in (scores or {}).items():
            field = f'{self.names.scores}["{name}"]'
            for hypothesis, value in _pair(hypotheses, values, field, list_id):
                hypothesis.setdefault(self.names.scores, {})[name] = value
        return {**record, self.names.hypotheses: hypotheses}


def _pair(
    hypotheses: list[dict[str, Any]], values: Any, field: str, list_id: str
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each hypothesis with its score, or nothing if there are no scores.

    Args:
        values: the array of scores; None if the row has none.
    """
    if values is None:
        return iter(())
    if not isinstance(values, list):
        raise InvalidList("expected an array of scores, one per text", list_id=list_id, field=field)
    if len(values) != len(hypotheses):
        message = (
            f"{len(values)} scores for {len(hypotheses)} texts; expected one each. If these are not scores, "
            "name the columns that are with --stream"
        )
        raise InvalidList(message, list_id=list_id, field=field)
    return zip(hypotheses, values, strict=True)


def find_columns(schema: pa.Schema, names: FieldMap, file: str) -> Columns:
    """Choose the columns of a table that are read: all columns whose values JSON can hold.

    Raises:
        FormatError: two columns have the same name, there is no column of ids or of hypotheses, or a column
            has a type that its field cannot have.
    """
    if len(set(schema.names)) < len(schema.names):
        raise FormatError("two columns have the same name", file=file)
    hypotheses = names.hypotheses
    if hypotheses == FieldMap().hypotheses and hypotheses not in schema.names and TEXTS in schema.names:
        hypotheses = TEXTS
    _check_required(schema.names, names, hypotheses, file)
    needed = {hypotheses, *(getattr(names, name) for name in LIST_FIELDS if name != "hypotheses")}
    converters: dict[str, Convert | None] = {}
    for column in schema:
        try:
            converters[column.name] = find_converter(_type_without_times(column.type))
        except ValueError:
            if column.name in needed:
                message = f"the column has the type {column.type}, which no field of lists has"
                raise FormatError(message, file=file, field=column.name) from None
    if not _is_list_of(schema.field(hypotheses).type, STRINGS):
        if hypotheses == TEXTS:
            message = f"the column has the type {schema.field(TEXTS).type}; expected a list of texts"
            raise FormatError(message, file=file, field=TEXTS)
        return Columns(converters, names)
    mapped = {stream.field for stream in names.streams.values()}
    scores = NUMBERS if mapped else FRACTIONS
    arrays = [column.name for column in schema if _is_list_of(column.type, scores)]
    streams = [name for name in arrays if name not in needed and (not mapped or name in mapped)]
    return Columns(converters, names, hypotheses, tuple(streams))


def _check_required(columns: list[str], names: FieldMap, hypotheses: str, file: str) -> None:
    """Raise FormatError if a table has no column of ids, or none of hypotheses."""
    known = ", ".join(columns[:MAX_NAMES]) + (", …" if len(columns) > MAX_NAMES else "") or "none"
    if names.id and names.id not in columns:
        message = (
            f"there is no such column; give --map id=COLUMN, or --map id= to take the number of the row "
            f"(columns: {known})"
        )
        raise FormatError(message, file=file, field=names.id)
    if hypotheses not in columns:
        message = f"there is no such column; give --map hypotheses=COLUMN (columns: {known})"
        raise FormatError(message, file=file, field=hypotheses)


def find_converter(kind: pa.DataType) -> Convert | None:
    """Return the function that converts values of a type, or None if JSON can hold them as they are.

    Raises:
        ValueError: JSON cannot hold values of the type, such as bytes.
    """
    if _is(kind, "decimal"):
        return float
    if _is(kind, "date"):
        return str
    if _is(kind, "null", "boolean", *NUMBERS, *STRINGS):
        return None
    if _is(kind, "dictionary"):
        return find_converter(kind.value_type)
    if _is(kind, *LISTS):
        inner = find_converter(kind.value_type)
        return None if inner is None else partial(_convert_items, inner)
    if _is(kind, "struct"):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        if len({field.name for field in fields}) < len(fields):
            raise ValueError(kind)
        return partial(_convert_object, {field.name: find_converter(field.type) for field in fields})
    if _is(kind, "map") and _is(kind.key_type, *STRINGS):
        return partial(_convert_pairs, find_converter(kind.item_type))
    raise ValueError(kind)


def _convert_items(convert: Convert, items: list[Any]) -> list[Any]:
    return [None if item is None else convert(item) for item in items]


def _convert_object(converters: dict[str, Convert | None], value: dict[str, Any]) -> dict[str, Any]:
    """Convert the fields of an object, leaving out fields without a value."""
    return {
        name: convert(value[name]) if convert else value[name]
        for name, convert in converters.items()
        if value[name] is not None
    }


def _convert_pairs(convert: Convert | None, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: convert(value) if convert else value for name, value in pairs if value is not None}


def _type_without_times(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column once dates and times have become texts."""
    import pyarrow as pa

    return pa.string() if _is(kind, *TIMES) else kind


def _without_times(column: pa.Array) -> pa.Array:
    """Turn dates and times into texts. Times with a zone become UTC, as a machine may not know the zone."""
    import pyarrow as pa
    from pyarrow import compute

    kind = _type_without_times(column.type)
    if kind == column.type:
        return column
    if _is(column.type, "timestamp") and column.type.tz is not None:
        utc = column.cast(pa.timestamp(column.type.unit)).cast(kind)
        return compute.binary_join_element_wise(utc, "Z", "")
    return column.cast(kind)


def _is_list_of(kind: pa.DataType, names: Sequence[str]) -> bool:
    if not _is(kind, *LISTS):
        return False
    value = kind.value_type
    return _is(value.value_type if _is(value, "dictionary") else value, *names)


SUFFIX = ".parquet"
GROUP_ROWS = 4096
"""Largest number of rows that the writer puts into a row group, which it holds in memory."""
GROUP_BYTES = 1 << 25
"""Approximate size of the rows at which the writer ends a row group earlier; in memory they take ten times as
much."""
VALUE_BYTES = 24
"""Size that a number or a text counts, besides the letters of the text."""
DEFAULT_FIELDS = FieldMap()


def read_lists(
    source: Source, names: FieldMap = DEFAULT_FIELDS, group_of: Callable[[str], str] | None = None
) -> Lists:
    """Yield the list of each row of a file, or of all files of a folder.

    An invalid row, or a file in a folder that cannot be read, yields an error. The line of an error is the
    number of the row, from 1. If an object in object storage cannot be read, reading ends, because the
    storage may not deliver other objects either.

    Args:
        names: names of the columns, and of the fields of hypotheses.
        group_of: function that returns the group of a list, given the list's id; called for lists without a
            group.

    Raises:
        FormatError: the only file, or an object, cannot be opened, lacks a needed column, or has a column of
            a type that cannot be read.
        ConfigError: pyarrow is missing.
    """
    tables = find_tables(source)
    for name in tables:
        try:
            yield from _read_table(name, names, group_of)
        except FormatError as error:
            if len(tables) == 1 or is_url(name):
                raise
            yield error


def find_tables(source: Source) -> list[str]:
    """Return the name of a file or object; of a folder or prefix, the sorted names of all tables below it.

    Files or folders whose names begin with ``.`` or ``_`` are left out, such as Spark's ``_SUCCESS``.

    Raises:
        FormatError: the source is a pipe, does not exist, or has no tables.
    """
    name = source_name(source)
    if not isinstance(source, (str, Path)) or str(source) == "-":
        raise FormatError("parquet cannot be read from a pipe; write it to a file first", file=name)
    if is_url(source):
        found = [name] if is_object(name) else [url for url in list_objects(name) if url.endswith(SUFFIX)]
    elif not Path(source).is_dir():
        return [name]
    else:
        found = sorted(map(str, _find_files(Path(source))))
    if not found:
        raise FormatError(f"has no tables; expected files that end in {SUFFIX}", file=name)
    return found


def _find_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob(f"*{SUFFIX}"):
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts) and path.is_file():
            yield path


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    if is_parquet(sample.magic):
        return f"its first bytes are {PARQUET_MAGIC.decode()}"
    if any(name.endswith(SUFFIX) for name in sample.names):
        return f"it has files that end in {SUFFIX}"
    if sample.is_folder and not sample.magic and next(_find_files(sample.path), None):
        return f"its folders have files that end in {SUFFIX}"
    return ""


def _read_table(name: str, names: FieldMap, group_of: Callable[[str], str] | None) -> Lists:
    import_parquet(name)
    import pyarrow as pa

    try:
        stream = open_named(name)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", file=name) from None
    with stream:
        try:
            table = open_table(stream)
        except TooLarge as error:
            raise FormatError(str(error), file=name) from None
        except UnicodeDecodeError as error:
            raise FormatError(
                f"has the name of a column that is not UTF-8: {error.reason}", file=name
            ) from None
        except DamagedData as error:
            raise FormatError(f"damaged data: {error}", file=name) from None
        except (OSError, pa.ArrowException) as error:
            raise FormatError(f"is not a parquet file: {_first_line(error)}", file=name) from None
        columns = find_columns(table.schema, names, name)
        reader = _RowReader(name, columns, RecordParser(name, columns.names, group_of))
        first_row = 1
        for group in range(table.n_groups):
            yield from reader.read_group(table, group, first_row)
            first_row += table.count_rows(group)


@dataclass(frozen=True, slots=True)
class _RowReader:
    """Turns the rows of a table into lists."""

    file: str
    columns: Columns
    parser: RecordParser

    def read_group(self, table: Table, group: int, row: int) -> Lists:
        """Yield the lists of a row group. If the group is damaged, end with an error.

        Args:
            row: number of the group's first row in the file.
        """
        import pyarrow as pa

        try:
            for batch in table.read_batches(group, self.columns.converters):
                if isinstance(batch, OversizedRow):
                    message = f"longer than {max_line_bytes()} bytes; set {MAX_LINE_VARIABLE} to allow more"
                    yield FormatError(message, file=self.file, line=row)
                    row += 1
                else:
                    yield from self.parse_batch(batch, row)
                    row += batch.num_rows
        except TooLarge as error:
            yield FormatError(f"row group {group} is not read: {error}", file=self.file, line=row)
        except (OSError, DamagedData, pa.ArrowException) as error:
            message = f"damaged data in row group {group}: {_first_line(error)}"
            yield FormatError(message, file=self.file, line=row)

    def parse_batch(self, batch: pa.RecordBatch, first_row: int) -> Lists:
        """Yield the list of each row, or an error in its place if a value of the row cannot be read."""
        problem, records = "", list[dict[str, Any]]()
        try:
            records = list(self.columns.read_rows(batch))
        except UnicodeDecodeError as error:
            problem = f"not UTF-8: {error.reason}"
        except (OverflowError, ValueError) as error:  # such as a date after the year 9999
            problem = f"has a value that cannot be read: {error}"
        if problem and batch.num_rows == 1:
            yield FormatError(problem, file=self.file, line=first_row)
        elif problem:  # in one of the rows
            for index in range(batch.num_rows):
                yield from self.parse_batch(batch.slice(index, 1), first_row + index)
        for row, record in enumerate(records, first_row):
            try:
                yield self.parser.parse(self.columns.join(record), row)
            except InvalidList as error:
                yield add_location(error, self.file, row)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one list per row, with a fixed set of columns. Fields of lists and hypotheses that have no column
    are left out.

    Raises:
        FormatError: the file cannot be written.
        ConfigError: pyarrow is missing.
    """
    import_parquet(str(target))
    import pyarrow as pa

    schema = _make_schema()
    with write_groups(target, schema, partial(pa.Table.from_pylist, schema=schema)) as add:
        yield lambda nbest: add(_make_row(nbest), _count_list_bytes(nbest))


@contextmanager
def write_groups(
    target: str | Path, schema: pa.Schema, make_table: Callable[[list[Any]], pa.Table], **style: Any
) -> Iterator[Callable[[Any, int], None]]:
    """Open a table; yield the function that adds a row of a certain size in bytes.

    Args:
        make_table: makes a table of rows: those of one row group, which alone are in memory.
        style: arguments of ``pyarrow.parquet.ParquetWriter``.

    Raises:
        FormatError: the file cannot be written.
        ConfigError: pyarrow is missing.
    """
    parquet = import_parquet(str(target))
    rows, n_bytes = list[Any](), 0
    with open_binary_output(target) as stream, parquet.ParquetWriter(stream, schema, **style) as table:

        def flush() -> None:
            nonlocal n_bytes
            table.write_table(make_table(rows))
            rows.clear()
            n_bytes = 0

        def add(row: Any, size: int) -> None:
            nonlocal n_bytes
            rows.append(row)
            n_bytes += size
            if len(rows) == GROUP_ROWS or n_bytes >= GROUP_BYTES:
                flush()

        yield add
        if rows:
            flush()


def _count_list_bytes(nbest: NBestList) -> int:
    """Return the approximate size of a list in a table."""
    texts = [nbest.id, nbest.reference or "", nbest.context, nbest.group or ""]
    texts += [hypothesis.text for hypothesis in nbest.hypotheses]
    texts += [utterance.text for utterance in nbest.previous]
    texts += [text for phrase in nbest.phrases for text in (phrase.text, *phrase.spellings)]
    n_values = len(texts) + len(nbest.streams) * len(nbest.hypotheses)
    return sum(map(len, texts)) + VALUE_BYTES * n_values


def _make_schema() -> pa.Schema:
    import pyarrow as pa

    hypothesis = pa.struct({"text": pa.string(), "scores": pa.map_(pa.string(), pa.float64())})
    return pa.schema({"id": pa.string(), "hypotheses": pa.list_(hypothesis), **about_list_types()})


def about_list_types() -> dict[str, pa.DataType]:
    """Return the types of the columns for everything that a list has besides its id and its hypotheses."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    utterance = pa.struct({"text": text, "speaker": text, "confidence": number})
    phrase = pa.struct({"text": text, "weight": number, "spellings": pa.list_(text), "slot": text})
    texts = dict.fromkeys(("reference", "context", "group"), text)
    return {**texts, "previous": pa.list_(utterance), "phrases": pa.list_(phrase)}


def _make_row(nbest: NBestList) -> dict[str, Any]:
    hypotheses = [
        {"text": hypothesis.text, "scores": {name: values[index] for name, values in nbest.streams.items()}}
        for index, hypothesis in enumerate(nbest.hypotheses)
    ]
    return {
        "id": nbest.id,
        "hypotheses": hypotheses,
        "reference": nbest.reference,
        "context": nbest.context or None,
        "group": nbest.group or None,
        "previous": as_objects(utterance_records(nbest.previous)) or None,
        "phrases": as_objects(phrase_records(nbest.phrases)) or None,
    }


def import_parquet(file: str) -> Any:
    """Import pyarrow's module; raise ConfigError, which names the file, if it is missing."""
    try:
        from pyarrow import parquet
    except ImportError:
        message = f"{file}: parquet needs another package: pip install 'rescorer[parquet]'"
        raise ConfigError(message) from None
    return parquet


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
