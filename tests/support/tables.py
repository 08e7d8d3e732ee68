"""Tables for tests of parquet."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import parquet as pq

TEXTS = st.none() | st.sampled_from(["", "a", "ü", "the cat"]) | st.text(max_size=3)
ROWS = st.lists(st.none() | st.lists(TEXTS, max_size=4), min_size=1, max_size=30)


def write_table(path: Path, columns: dict, **options) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def write_texts(path: Path, n: int, **options) -> Path:
    """A table of n lists as arrays of texts and of scores."""
    columns = {
        "id": [f"u{i}" for i in range(n)],
        "texts": [["the cat", "the mat"]] * n,
        "acoustic": [[-1.0 * i, -2.0] for i in range(n)],
    }
    return write_table(path, columns, **options)


def write_nested(rows: list, **options) -> io.BytesIO:
    """A table of lists, maps and structs of texts, and of numbers."""
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
