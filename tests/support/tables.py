"""Tables for tests of parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet as pq


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
