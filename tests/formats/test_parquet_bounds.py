"""Tables that expand to much more than their size are read in bounded memory, or refused."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from rescorer.formats.io.text_io import MAX_LINE_VARIABLE
from rescorer.formats.parquet import count_bytes
from tests.support.tables import ROWS, write_nested, write_table

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
        # One page of 7 MB in each of 15 columns.
        ({"id": ["u0"], "texts": [["a"]], **{f"x{i}": [large * 8] for i in range(15)}}, pages),
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
        ("t4", "pages of its columns take 108,000,"),
    ]:
        assert any(
            f"{name}:1: row group 0 is not read: " in line
            and message in line
            and f"set {MAX_LINE_VARIABLE} to allow more" in line
            for line in lines
        ), (name, lines)


def count_slowly(items: list) -> int:
    """Bytes of texts, each with 4 for its place; those of pairs of texts, too."""
    texts = [text for item in items for text in (item if isinstance(item, tuple) else (item,))]
    return sum(4 + len((text or "").encode()) for text in texts)


def join(rows: pa.Array) -> list:
    return [item for row in rows.to_pylist() if row is not None for item in row]


@given(ROWS, st.integers(0, 30), st.integers(0, 30))
def test_size_of_references_is_that_of_texts(rows, start, length):
    stream = write_nested(rows)
    schema = pq.read_metadata(stream).schema
    table = pq.ParquetFile(stream, read_dictionary=[schema.column(index).path for index in range(4)])
    (batch,) = table.iter_batches(100, columns=["lists", "maps", "structs"])
    lists, maps, structs = batch.slice(start, length).columns
    assert pa.types.is_dictionary(lists.type.value_type)
    assert count_bytes(lists) == 4 * len(lists) + count_slowly(join(lists))
    assert count_bytes(maps) == 4 * len(maps) + count_slowly(join(maps))
    assert count_bytes(structs) == count_slowly([row["text"] for row in structs.to_pylist()])
