"""Columns are measured as pyarrow sees them; damaged footers and headers are errors, and never abort."""

from __future__ import annotations

import io
import tempfile
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from rescorer.errors import FormatError, InputError
from rescorer.formats.parquet import read_lists
from rescorer.formats.parquet_sizes import (
    COMPRESSED_BYTES,
    DATA_OFFSET,
    DICTIONARY_OFFSET,
    N_VALUES,
    DamagedData,
    measure_columns,
    read_row_groups,
)
from rescorer.types import NBestList
from tests.support.tables import ROWS, write_nested


def split_footer(content: bytes) -> tuple[bytes, bytes]:
    """The pages of a file, and its footer."""
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return content[:start], content[start:-8]


def join_footer(pages: bytes, footer: bytes) -> bytes:
    return pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def measure(stream: io.BytesIO, group: int, names: list[str]) -> list:
    chunks = read_row_groups(split_footer(stream.getvalue())[1])[group]
    return list(measure_columns(stream, pq.read_metadata(stream).schema, chunks, names))


@given(
    ROWS,
    st.booleans(),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from(["none", "zstd", "gzip", "snappy"]),
    st.sampled_from([1, 1 << 20]),
)
def test_pages_are_measured_as_pyarrow_writes_them(rows, is_dictionary, version, compression, page_bytes):
    stream = write_nested(
        rows,
        use_dictionary=is_dictionary,
        data_page_version=version,
        compression=compression,
        data_page_size=page_bytes,
        write_batch_size=1 if page_bytes == 1 else 1024,
    )
    group = pq.read_metadata(stream).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    sizes = measure(stream, 0, ["lists", "maps", "structs", "numbers"])
    assert [size.name for size in sizes] == [column.path_in_schema for column in columns]
    assert [size.is_repeated for size in sizes] == [True, True, True, False, False]
    for size, column in zip(sizes, columns, strict=True):
        assert size.n_values == column.num_values
        assert size.compressed_bytes == column.total_compressed_size
        assert size.largest_bytes <= size.n_bytes < column.total_uncompressed_size  # with the headers
    assert measure(stream, 0, ["list", "numbers"]) == sizes[-1:]


@given(ROWS, st.integers(1, 9), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_columns_are_where_pyarrow_finds_them(rows, group_rows, is_dictionary, with_statistics):
    stream = write_nested(
        rows, row_group_size=group_rows, use_dictionary=is_dictionary, write_statistics=with_statistics
    )
    metadata = pq.read_metadata(stream)
    groups = read_row_groups(split_footer(stream.getvalue())[1])
    assert len(groups) == metadata.num_row_groups
    for index, chunks in enumerate(groups):
        group = metadata.row_group(index)
        assert len(chunks) == group.num_columns
        for chunk, column in zip(chunks, map(group.column, range(group.num_columns)), strict=True):
            assert chunk[N_VALUES] == column.num_values
            assert chunk[COMPRESSED_BYTES] == column.total_compressed_size
            assert chunk[DATA_OFFSET] == column.data_page_offset
            assert chunk.get(DICTIONARY_OFFSET) == column.dictionary_page_offset


def write_lists() -> bytes:
    """A file of two lists, whose footer contains size statistics."""
    stream = io.BytesIO()
    table = pa.table({"id": ["u0", "u1"], "texts": [["the cat", "the mat"], ["a"]]})
    pq.write_table(table, stream, store_schema=False, compression="none")
    return stream.getvalue()


LISTS_FILE = write_lists()


def test_statistics_that_contradict_the_schema_are_an_error_of_the_group(tmp_path):
    """pyarrow's own accessor of such a column ends the process."""
    path, two_items = (
        tmp_path / "a.parquet",
        b"\x19\x26\x00\x04",
    )  # the histogram of the ids' definition levels
    assert LISTS_FILE.count(two_items) == 1
    path.write_bytes(LISTS_FILE.replace(two_items, b"\x19\x16\x80\x04"))
    (error,) = read_lists(path)
    assert isinstance(error, FormatError)
    assert "a.parquet:1: damaged data in row group 0: Definition level histogram" in str(error)


def test_a_footer_that_pyarrow_reads_differently_is_an_error_of_the_file(tmp_path):
    path, encodings = tmp_path / "a.parquet", b"\x19\x35\x00\x06\x10"
    assert encodings in LISTS_FILE
    path.write_bytes(LISTS_FILE.replace(encodings, b"\x19\x36" + encodings[2:]))
    with pytest.raises(FormatError, match=r"a\.parquet: damaged data: the footer cannot be read"):
        list(read_lists(path))


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damaged_footer_gives_lists_or_errors(changes):
    pages, footer = split_footer(LISTS_FILE)
    damaged = bytearray(footer)
    for position, byte in changes:
        damaged[position % len(footer)] = byte
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        path.write_bytes(join_footer(pages, damaged))
        try:
            outcomes = list(read_lists(path))
        except FormatError as error:
            outcomes = [error]
    for outcome in outcomes:
        assert isinstance(outcome, NBestList | InputError)
        assert isinstance(outcome, NBestList) or "a.parquet" in str(outcome)


def test_a_footer_that_claims_to_be_long_takes_no_memory(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(LISTS_FILE[:-8] + b"\xff\xff\xff\x7fPAR1")
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="is not a parquet file"):
            list(read_lists(path))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


COLUMN = b"\x56\x06\x26\x14\x26\x08\x26\x04"
"""3 values and 10 bytes; pages start at 4, a dictionary at 2."""


def make_footer(column: bytes) -> bytes:
    """A footer of a group with a column."""
    return b"\x49\x1c" + b"\x19\x1c" + b"\x3c" + column + bytes(4)


@pytest.mark.parametrize(
    "footer",
    [
        make_footer(COLUMN + b"\x06\x12\x08"),  # the offset of the pages a second time
        make_footer(COLUMN[:-2] + b"\x25\x04"),  # the offset of the dictionary as a number of 32 bits
        make_footer(COLUMN[:-2] + b"\x06\x96\x80\x08\x04"),  # as the field 11 + 2**16
        make_footer(COLUMN[:-1] + b"\xff" * 9 + b"\x02"),  # as a number of 65 bits
        make_footer(b"\x29\x18\x00" + COLUMN),  # encodings as texts
        make_footer(b"\x28\x00" + COLUMN),  # as one text
        make_footer(b"\xfb\x00" + COLUMN),  # a kind that does not exist
        make_footer(COLUMN)[:-1],
        b"\x49\xfc\xff\xff\xff\xff\x0f",  # 2**32 groups
        b"\x1c" * 3000,  # structures in structures
    ],
)
def test_footers_that_pyarrow_might_read_differently_are_damaged(footer):
    sound = {N_VALUES: 3, COMPRESSED_BYTES: 10, DATA_OFFSET: 4, DICTIONARY_OFFSET: 2}
    assert read_row_groups(make_footer(COLUMN)) == [[sound]]
    with pytest.raises(DamagedData, match="the footer cannot be read"):
        read_row_groups(footer)


@given(ROWS, st.data())
def test_damaged_headers_of_pages_are_errors(rows, data):
    stream = write_nested(rows, compression="none")
    metadata = pq.read_metadata(stream)
    column = metadata.row_group(0).column(0)
    content = bytearray(stream.getvalue())
    start = column.dictionary_page_offset or column.data_page_offset
    noise = data.draw(st.binary(min_size=1, max_size=30))
    content[start : start + len(noise)] = noise
    try:
        sizes = measure(io.BytesIO(content), 0, ["lists"])
    except DamagedData:
        return
    assert len(sizes) == 1


@pytest.mark.parametrize(
    "header",
    [
        b"\x19\xf7" + b"\xff" * 8 + b"\x01",  # a list of 2**63 numbers
        b"\x19\xf1" + b"\xff" * 4 + b"\x0f",  # of 2**32 flags
        b"\x1c" * 3000,  # structures in structures
        b"\x98\xff\xff\xff\xff\x0f",  # a text of 4 GB
        b"\x15" + b"\xff" * 20,  # a number that does not end
        b"\x15\x00\x15\x01\x15\x01\x00",  # sizes of -1
        b"\x15\x00\x15\x08\x15\x08\x00",  # a page of data without a number of values
        b"\x00",
    ],
)
def test_headers_that_claim_too_much_end_at_once(header):
    stream = write_nested([["a"]], compression="none")
    content = bytearray(stream.getvalue())
    start = pq.read_metadata(stream).row_group(0).column(0).dictionary_page_offset
    content[start : start + len(header)] = header
    with pytest.raises(DamagedData):
        measure(io.BytesIO(content), 0, ["lists"])


def test_hostile_pages_are_counted_as_pyarrow_counts_them():
    """A header may describe pages of both versions, of which the type of the page decides."""
    schema = pq.read_metadata(write_nested([["a"]])).schema
    header = b"\x15\x06\x15\x14\x15\x00" + b"\x2c\x15\xc8\x01\x00" + b"\x3c\x15\x02\x00" + b"\x00"
    chunk = {N_VALUES: 2, COMPRESSED_BYTES: 2 * len(header), DATA_OFFSET: 0}
    chunks = [chunk] * len(schema)
    (size,) = measure_columns(io.BytesIO(2 * header), schema, chunks, ["numbers"])
    assert (size.n_values, size.n_bytes) == (2, 20)
    for claim in ({COMPRESSED_BYTES: 0}, {N_VALUES: 3}):  # pyarrow may read a little more than the column
        claims = [chunk | claim] * len(schema)
        (size,) = measure_columns(io.BytesIO(2 * header + bytes(9)), schema, claims, ["numbers"])
        assert (size.n_values, size.n_bytes) == (2, 20)
    with pytest.raises(DamagedData, match="it has 4 columns; the schema has 5"):
        list(measure_columns(io.BytesIO(2 * header), schema, chunks[:-1], ["numbers"]))
