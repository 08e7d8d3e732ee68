"""Read and write parquet, a format of tables in which columns are stored one after another.

Rows are read a few at a time, so that memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import Write, add_location
from rescorer.formats.conversation_fields import phrase_records, utterance_records
from rescorer.formats.field_map import FieldMap
from rescorer.formats.io.chunks import PARQUET_MAGIC, is_parquet
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import (
    MAX_LINE_VARIABLE,
    Source,
    max_line_bytes,
    open_binary_output,
    open_named,
    source_name,
)
from rescorer.formats.nbest.records import parse_record
from rescorer.formats.tables.batches import OversizedRow, Table, TooLarge, open_table
from rescorer.formats.tables.columns import Columns, find_columns
from rescorer.formats.tables.pages import DamagedPage
from rescorer.storage.objects import find_objects, is_object
from rescorer.storage.urls import is_url
from rescorer.types import NBestList

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".parquet"
GROUP_ROWS = 4096
"""Rows of a row group that is written."""
DEFAULT_FIELDS = FieldMap()


def read_lists(
    source: Source,
    names: FieldMap = DEFAULT_FIELDS,
    group_of: Callable[[str], str] | None = None,
) -> Iterator[NBestList | InputError]:
    """Yield the list of each row of a file, or of all files of a folder; errors in place of rows that have
    none, and of files of a folder that cannot be read.

    The line of an error is the row, counted from 1. An object that cannot be read ends the reading, since the
    storage may not answer for the others either.

    Args:
        names: Names of the columns, and of the fields of hypotheses.
        group_of: Function that returns the group for the id of a list without one.

    Raises:
        FormatError: The only file, or an object, cannot be opened, or lacks columns, or a column has a type
            that cannot be read.
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
    """The name of a file or object; or the names of all tables below a folder or prefix, in order.

    Names with a part that begins with ``.`` or ``_`` are left out, such as Spark's ``_SUCCESS``.

    Raises:
        FormatError: The source is a pipe, does not exist, or has no tables.
    """
    name = source_name(source)
    if not isinstance(source, (str, Path)) or str(source) == "-":
        raise FormatError("parquet cannot be read from a pipe; write it to a file first", file=name)
    if is_url(source):
        found = [name] if is_object(name) else _find_objects(name)
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


def _find_objects(url: str) -> list[str]:
    try:
        return [name for name in find_objects(url) if name.endswith(SUFFIX)]
    except FileNotFoundError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=url) from None


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    if is_parquet(sample.magic):
        return f"its first bytes are {PARQUET_MAGIC.decode()}"
    if any(name.endswith(SUFFIX) for name in sample.names):
        return f"it has files that end in {SUFFIX}"
    if sample.is_folder and not sample.magic and next(_find_files(sample.path), None):
        return f"its folders have files that end in {SUFFIX}"
    return ""


def _read_table(
    name: str, names: FieldMap, group_of: Callable[[str], str] | None
) -> Iterator[NBestList | InputError]:
    _import_parquet(name)
    import pyarrow as pa

    try:
        stream = open_named(name)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", file=name) from None
    with stream:
        try:
            table = open_table(stream)
        except (OSError, pa.ArrowException) as error:
            raise FormatError(f"is not a parquet file: {_first_line(error)}", file=name) from None
        columns = find_columns(table.schema, names, name)
        first_row = 1
        for group in range(table.n_groups):
            yield from _read_group(table, group, columns, group_of, name, first_row)
            first_row += table.count_rows(group)


def _read_group(
    table: Table,
    group: int,
    columns: Columns,
    group_of: Callable[[str], str] | None,
    file: str,
    first_row: int,
) -> Iterator[NBestList | InputError]:
    """Yield the lists of a row group; if it is damaged, those before the damage and an error."""
    import pyarrow as pa

    row = first_row
    try:
        for batch in table.read_batches(group, columns.converters):
            if isinstance(batch, OversizedRow):
                message = f"longer than {max_line_bytes()} bytes; set {MAX_LINE_VARIABLE} to allow more"
                yield FormatError(message, file=file, line=row)
                row += 1
            else:
                yield from _parse_batch(batch, columns, group_of, file, row)
                row += batch.num_rows
    except TooLarge as error:
        yield FormatError(f"row group {group} is not read: {error}", file=file, line=row)
    except (OSError, DamagedPage, pa.ArrowException) as error:
        message = f"damaged data in row group {group}: {_first_line(error)}"
        yield FormatError(message, file=file, line=row)


def _parse_batch(
    batch: pa.RecordBatch,
    columns: Columns,
    group_of: Callable[[str], str] | None,
    file: str,
    first_row: int,
) -> Iterator[NBestList | InputError]:
    problem, records = "", list[dict[str, Any]]()
    try:
        records = list(columns.read_rows(batch))
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: {error.reason}"
    except (OverflowError, ValueError) as error:  # such as a date after the year 9999
        problem = f"has a value that cannot be read: {error}"
    if problem and batch.num_rows == 1:
        yield FormatError(problem, file=file, line=first_row)
    elif problem:  # in one of the rows
        for index in range(batch.num_rows):
            yield from _parse_batch(batch.slice(index, 1), columns, group_of, file, first_row + index)
    for row, record in enumerate(records, first_row):
        try:
            yield parse_record(columns.join(record), columns.names, {}, group_of, file, row)
        except InvalidList as error:
            yield add_location(error, file, row)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one list per row, with a fixed set of columns; fields of clients are left out.

    Raises:
        FormatError: The file cannot be written.
        ConfigError: pyarrow is missing.
    """
    parquet = _import_parquet(str(target))
    import pyarrow as pa

    schema, rows = _make_schema(), list[dict[str, Any]]()
    with open_binary_output(target) as stream, parquet.ParquetWriter(stream, schema) as table:

        def flush() -> None:
            table.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        def write(nbest: NBestList) -> None:
            rows.append(_make_row(nbest))
            if len(rows) == GROUP_ROWS:
                flush()

        yield write
        flush()


def _make_schema() -> pa.Schema:
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    hypothesis = pa.struct({"text": text, "scores": pa.map_(text, number)})
    utterance = pa.struct({"text": text, "speaker": text, "confidence": number})
    phrase = pa.struct({"text": text, "weight": number, "spellings": pa.list_(text), "slot": text})
    fields = {"id": text, "hypotheses": pa.list_(hypothesis)}
    fields |= dict.fromkeys(("reference", "context", "group"), text)
    return pa.schema({**fields, "previous": pa.list_(utterance), "phrases": pa.list_(phrase)})


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
        "previous": _as_objects(utterance_records(nbest.previous)),
        "phrases": _as_objects(phrase_records(nbest.phrases)),
    }


def _as_objects(items: list[str | dict[str, Any]]) -> list[dict[str, Any]] | None:
    return [{"text": item} if isinstance(item, str) else item for item in items] or None


def _import_parquet(file: str) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        message = f"{file}: parquet needs another package: pip install 'rescorer[parquet]'"
        raise ConfigError(message) from None
    return parquet


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
