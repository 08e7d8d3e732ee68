"""Tables that expand to much more than their size are read in bounded memory, or refused."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from rescorer.formats.io.text_io import MAX_LINE_VARIABLE
from rescorer.formats.parquet import DamagedPage, count_bytes, measure_columns
from tests.support.tables import write_table

MAX_GROWTH_BYTES = 40 << 20
"""Memory for any of the tables, each of which becomes 100 MB or more, where a line has up to 1 MiB."""
READ = """
import sys
from rescorer.formats.parquet import read_lists
import pyarrow.parquet

def peak_bytes():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024  # ru_maxrss has the peak of the parent, too

list(read_lists(sys.argv[1]))
before = peak_bytes()
for name in sys.argv[2:]:
    for item in read_lists(name):
        print(item if isinstance(item, Exception) else item.id)
    print("grown:", peak_bytes() - before)
"""


def repeat(n: int, text: str) -> pa.Array:
    """A column of which the file has one value, and how often it occurs."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, "int32")), pa.array([text]))


def in_lists(items: pa.Array, *ends: int) -> pa.Array:
    """Lists of consecutive items."""
    return pa.ListArray.from_arrays(pa.array((0, *ends), pa.int32()), items)


def test_memory_does_not_grow_with_what_tables_expand_to(tmp_path):
    large, plain = "a" * 900_000, {"compression": "zstd", "write_statistics": False}
    pages = {"use_dictionary": False, "write_batch_size": 1, "data_page_size": 1 << 20}
    small = write_table(tmp_path / "small", {"id": ["u0"], "texts": [["a"]]})
    tables = [
        # One page of 100 MB.
        ({"id": ["u0"], "texts": [[large * 111]]}, {"use_dictionary": False}),
        # One text that occurs in 400 rows, which are read.
        ({"id": [f"u{i}" for i in range(400)], "texts": in_lists(repeat(400, large), *range(1, 401))}, {}),
        # A row with a text 20 million times.
        ({"id": ["u0"], "texts": in_lists(repeat(20_000_000, "a"), 20_000_000)}, {}),
        # Pages of one text each, all of which could be of one row.
        ({"id": [f"v{i}" for i in range(400)], "texts": [[large]] * 400}, pages),
    ]
    paths = [
        write_table(tmp_path / f"t{index}", columns, **plain, **options)
        for index, (columns, options) in enumerate(tables)
    ]
    assert all(path.stat().st_size < 200_000 for path in paths)
    command = [sys.executable, "-c", READ, *map(str, (small, *paths))]
    environment = os.environ | {MAX_LINE_VARIABLE: str(1 << 20)}
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    lines = out.splitlines()
    ids = [line for line in lines if line.startswith("u")]
    grown = [int(line.removeprefix("grown: ")) for line in lines if line.startswith("grown: ")]
    assert ids == [f"u{i}" for i in range(400)]
    assert max(grown) < MAX_GROWTH_BYTES, grown
    for name, message in [
        ("t0", "texts.list.element has a page of 99,900,0"),
        ("t2", "texts.list.element has 20,000,000 values, at most 2,097,152 are read: write smaller row"),
        ("t3", "texts.list.element expands from "),
    ]:
        assert any(
            f"{name}:1: row group 0 is not read: the column " in line
            and message in line
            and f"set {MAX_LINE_VARIABLE} to allow more" in line
            for line in lines
        ), (name, lines)


TEXTS = st.none() | st.sampled_from(["", "a", "ü", "the cat"]) | st.text(max_size=3)
ROWS = st.lists(st.none() | st.lists(TEXTS, max_size=4), min_size=1, max_size=30)


def write(rows, **options) -> io.BytesIO:
    pairs = [None if row is None else [(f"k{i}", text) for i, text in enumerate(row)] for row in rows]
    structs = [{"text": None if row is None else "".join(filter(None, row))} for row in rows]
    table = pa.table(
        {
            "lists": pa.array(rows, pa.list_(pa.string())),
            "maps": pa.array(pairs, pa.map_(pa.string(), pa.string())),
            "structs": pa.array(structs, pa.struct([("text", pa.string())])),
            "numbers": list(range(len(rows))),
        }
    )
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream


@given(
    ROWS,
    st.booleans(),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from(["none", "zstd", "gzip", "snappy"]),
    st.sampled_from([1, 1 << 20]),
)
def test_pages_are_measured_as_pyarrow_writes_them(rows, is_dictionary, version, compression, page_bytes):
    stream = write(
        rows,
        use_dictionary=is_dictionary,
        data_page_version=version,
        compression=compression,
        data_page_size=page_bytes,
        write_batch_size=1 if page_bytes == 1 else 1024,
    )
    metadata = pq.read_metadata(stream)
    group = metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    sizes = list(measure_columns(stream, metadata, 0, ["lists", "maps", "structs", "numbers"]))
    assert [size.name for size in sizes] == [column.path_in_schema for column in columns]
    assert [size.is_repeated for size in sizes] == [True, True, True, False, False]
    for size, column in zip(sizes, columns, strict=True):
        assert size.n_values == column.num_values
        assert size.largest_bytes <= size.n_bytes < column.total_uncompressed_size  # with the headers
    assert list(measure_columns(stream, metadata, 0, ["list", "numbers"])) == sizes[-1:]


@given(ROWS, st.data())
def test_damaged_headers_of_pages_are_errors(rows, data):
    stream = write(rows, compression="none")
    metadata = pq.read_metadata(stream)
    column = metadata.row_group(0).column(0)
    content = bytearray(stream.getvalue())
    start = column.dictionary_page_offset or column.data_page_offset
    noise = data.draw(st.binary(min_size=1, max_size=30))
    content[start : start + len(noise)] = noise
    try:
        sizes = list(measure_columns(io.BytesIO(content), metadata, 0, ["lists"]))
    except DamagedPage:
        return
    assert len(sizes) == 1


@pytest.mark.parametrize(
    "header",
    [
        b"\x19\xf7" + b"\xff" * 8 + b"\x01",  # a list of 2**63 numbers
        b"\x19\xf1" + b"\xff" * 8 + b"\x01",  # of flags
        b"\x1c" * 3000,  # structures in structures
        b"\x18\xff\xff\xff\xff\x0f",  # a text of 4 GB
        b"\x15" + b"\xff" * 20,  # a number that does not end
        b"\x15\x00\x15\x01\x15\x01\x00",  # sizes of -1
        b"\x00",
    ],
)
def test_headers_that_claim_too_much_end_at_once(header):
    stream = write([["a"]], compression="none")
    metadata, content = pq.read_metadata(stream), bytearray(stream.getvalue())
    start = metadata.row_group(0).column(0).dictionary_page_offset
    content[start : start + len(header)] = header
    with pytest.raises(DamagedPage):
        list(measure_columns(io.BytesIO(content), metadata, 0, ["lists"]))


def count_slowly(items: list) -> int:
    """Bytes of texts, each with 4 for its place; those of pairs of texts, too."""
    texts = [text for item in items for text in (item if isinstance(item, tuple) else (item,))]
    return sum(4 + len((text or "").encode()) for text in texts)


def join(rows: pa.Array) -> list:
    return [item for row in rows.to_pylist() if row is not None for item in row]


@given(ROWS, st.integers(0, 30), st.integers(0, 30))
def test_size_of_references_is_that_of_texts(rows, start, length):
    stream = write(rows)
    schema = pq.read_metadata(stream).schema
    table = pq.ParquetFile(stream, read_dictionary=[schema.column(index).path for index in range(4)])
    (batch,) = table.iter_batches(100, columns=["lists", "maps", "structs"])
    lists, maps, structs = batch.slice(start, length).columns
    assert pa.types.is_dictionary(lists.type.value_type)
    assert count_bytes(lists) == 4 * len(lists) + count_slowly(join(lists))
    assert count_bytes(maps) == 4 * len(maps) + count_slowly(join(maps))
    assert count_bytes(structs) == count_slowly([row["text"] for row in structs.to_pylist()])
