"""Hypotheses of tables that are read as columns are those that are read row by row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from rescorer.formats.fields import parse_field_map
from rescorer.formats.parquet import Columns, read_lists
from rescorer.types import NBestList

TEXTS = st.lists(st.sampled_from(["", "a", "a b", "ü"]), min_size=1, max_size=3)
FLOATS = st.sampled_from([-1.5, 0.0, 2.0**70, 3.0])
ODD = st.sampled_from(["", "short", "null text", "null score", "nan", "null list", "empty"])
KINDS = pa.float64(), pa.float32(), pa.int64(), pa.decimal128(30, 2)
NAMES = [((), ()), ((), ("lm=b",)), ((), ("x=a", "y=b:2:cost")), (("scores=",), ()), ((), ("a=text",))]


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[list[str | None] | None, dict[str, list[float | None] | None]]]:
    """Texts and scores by name of each row; most rows are plain."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        texts: list = draw(TEXTS)
        scores = {name: draw(st.lists(FLOATS, min_size=len(texts), max_size=len(texts))) for name in "ab"}
        odd = draw(st.just("") | ODD)
        if odd == "empty":
            texts, scores = [], {"a": [], "b": []}
        elif odd == "null list":
            texts, scores["b"] = draw(st.sampled_from([(None, None), (texts, None)]))
        elif odd == "null text":
            texts[-1] = None
        elif odd:
            scores["b"] = scores["b"][:-1] + {"short": [], "nan": [float("nan")], "null score": [None]}[odd]
        found.append((texts, scores))
    return found


def as_arrays(rows, kind) -> pa.Table:
    columns = {name: pa.array([scores[name] for _, scores in rows], pa.list_(kind)) for name in "ab"}
    return pa.table({"texts": pa.array([texts for texts, _ in rows], pa.list_(pa.string())), **columns})


def as_structs(rows, kind, *, mapped: bool) -> pa.Table:
    scores_kind = {"scores": pa.map_(pa.string(), kind)} if mapped else dict.fromkeys("ab", kind)
    column = []
    for texts, scores in rows:
        if texts is not None:
            values = [[*(scores[name] or ()), *[None] * len(texts)][: len(texts)] for name in "ab"]
            texts = [
                {"text": text, **({"scores": [("a", a), ("b", b)]} if mapped else {"a": a, "b": b})}
                for text, a, b in zip(texts, *values, strict=True)
            ]
        column.append(texts)
    hypothesis = pa.struct({"text": pa.string(), **scores_kind})
    return pa.table({"hypotheses": pa.array(column, pa.list_(hypothesis))})


def read_all(path, names) -> list[str]:
    """All that lists have, and what errors say."""
    return [
        repr((item.id, [*item.hypotheses], [*item.streams.items()], item.fields))
        if isinstance(item, NBestList)
        else str(item)
        for item in read_lists(path, names)
    ]


@given(rows(), st.sampled_from(["arrays", "structs", "maps"]), st.sampled_from(KINDS), st.sampled_from(NAMES))
@settings(max_examples=150)
def test_reads_columns_as_rows(tmp_path_factory, rows, layout, kind, names):
    try:
        if layout == "arrays":
            table = as_arrays(rows, kind)
        else:
            table = as_structs(rows, kind, mapped=layout == "maps")
    except (pa.ArrowException, ValueError, OverflowError):  # such as NaN in a column of integers
        return
    table = table.add_column(0, "id", pa.array([f"u{i}" for i in range(len(rows))]))
    path = tmp_path_factory.getbasetemp() / "lists.parquet"
    pq.write_table(table, path)
    fields = parse_field_map(*names)
    found = read_all(path, fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Columns, "_read_plain", lambda self, batch: [])
        assert found == read_all(path, fields)


@pytest.mark.parametrize("layout", ["arrays", "maps"])
def test_plain_tables_are_read_as_columns(tmp_path, layout):
    rows = [(["a", "b"], {"a": [1.0, 2.0], "b": [3.0, 4.0]}), (["c"], {"a": [5.0], "b": [6.0]})]
    make = as_arrays if layout == "arrays" else lambda *table: as_structs(*table, mapped=True)
    table = make(rows, pa.float64()).add_column(0, "id", pa.array(["u1", "u2"]))
    pq.write_table(table, tmp_path / "lists.parquet")
    first, second = read_lists(tmp_path / "lists.parquet")
    assert first.is_plain
    assert second.is_plain
    assert (first.texts, second.streams) == (["a", "b"], {"a": (5.0,), "b": (6.0,)})
