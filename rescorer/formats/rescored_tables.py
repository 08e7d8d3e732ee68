"""Write rescored lists as parquet: one list per row, with the fields that the lists have in JSON lines.

The hypotheses of many lists are written from arrays. The client's fields are left out; ``weights`` and
``generated`` are texts of JSON; fields that a list or a hypothesis does not have are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from rescorer.formats.fields import as_objects
from rescorer.formats.jsonlines import (
    describer,
    has_only_scores,
    hypothesis_records,
    repeated_weights,
    round_scores,
    scores_in_order,
)
from rescorer.formats.parquet import VALUE_BYTES, about_list_types, import_parquet, write_groups
from rescorer.ranking import Ranking
from rescorer.types import Weights

if TYPE_CHECKING:
    import pyarrow as pa

REPEATED_COLUMNS = (
    "model",
    "weights",
    "group",
    "degradation",
    "hypotheses.list.element.components.key_value.key",
)
"""Columns with few distinct values, which are stored once. Looking for equal scores would take long."""


class RescoredRow(NamedTuple):
    """A re-ranked list, its hypotheses best first."""

    record: dict[str, Any]
    """Fields of the list."""
    texts: Sequence[str]
    original_ranks: np.ndarray
    """(H,) int64, from 1."""
    names: tuple[str, ...]
    """Names of the K components."""
    scores: np.ndarray
    """(2 + K, H) float64: totals, log-posteriors and components, rounded."""
    others: dict[str, list[Any]]
    """What only some hypotheses have, by the name of the field: a value or None for each hypothesis."""


def render(rankings: Sequence[Ranking], weights: Weights, model: str) -> list[RescoredRow]:
    """Convert ranked lists to rows. Arguments are those of ``jsonlines.encode_rankings``."""
    describe, rows = describer(weights, model), list[RescoredRow]()
    weights_text = orjson.dumps(repeated_weights(weights)).decode()
    for ranking, scores in zip(rankings, _round_together([*map(scores_in_order, rankings)]), strict=True):
        record = describe(ranking) | {"weights": weights_text}
        for name in ("previous", "phrases"):
            if name in record:
                record[name] = as_objects(record[name])
        others = {} if has_only_scores(ranking) else _other_columns(ranking)
        texts = [*map(ranking.nbest.texts.__getitem__, ranking.order)]
        names = tuple(ranking.components)
        rows.append(RescoredRow(record, texts, np.array(ranking.order) + 1, names, scores, others))
    return rows


def _round_together(arrays: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield each array rounded; all are rounded at once."""
    rounded, begin = round_scores(np.concatenate([*map(np.ravel, arrays)] or [np.zeros(0)])), 0
    for array in arrays:
        yield rounded[begin : begin + array.size].reshape(array.shape)
        begin += array.size


def _other_columns(ranking: Ranking) -> dict[str, list[Any]]:
    """Return what only some hypotheses have, by the name of the field."""
    records = hypothesis_records(ranking)
    for one in records:
        if "generated" in one:
            one["generated"] = orjson.dumps(one["generated"]).decode()
    names = set().union(*records) & _other_types().keys()
    return {name: [one.get(name) for one in records] for name in names}


@contextmanager
def writer(target: str | Path) -> Iterator[Callable[[RescoredRow], None]]:
    """Open a table; yield the function that writes a row.

    Raises:
        FormatError: the file cannot be written.
        ConfigError: pyarrow is missing.
    """
    import_parquet(str(target))
    schema = _make_schema()

    def make_table(rows: list[RescoredRow]) -> pa.Table:
        return _make_table(rows, schema)

    with write_groups(target, schema, make_table, use_dictionary=[*REPEATED_COLUMNS]) as add:

        def write(row: RescoredRow) -> None:
            size = sum(map(len, row.texts)) + VALUE_BYTES * row.scores.size
            size += len(orjson.dumps((row.record, row.others)))  # previous utterances may be most of it
            add(row, size)

        yield write


def _other_types() -> dict[str, pa.DataType]:
    """Return the types of the fields that only some hypotheses have."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    return {
        "expected_errors": number,
        "confidence": number,
        "word_confidences": pa.list_(pa.struct({"word": text, "confidence": number})),
        "merged_ranks": pa.list_(pa.int32()),
        "generated": text,
    }


def _make_schema() -> pa.Schema:
    import pyarrow as pa

    text, number, rank = pa.string(), pa.float64(), pa.int32()
    hypothesis = {"text": text, "rank": rank, "original_rank": rank, "total": number, "log_posterior": number}
    hypothesis |= {"components": pa.map_(text, number), **_other_types()}
    numbers = dict.fromkeys(("posterior", "start_s", "duration_s"), number)
    fields = dict.fromkeys(("id", "model", "weights"), text)
    fields |= {"hypotheses": pa.list_(pa.struct(hypothesis)), **about_list_types()}
    fields |= {"decision": pa.struct({"kind": text, "unit": text, "temperature": number})}
    fields |= {"consensus": pa.list_(pa.struct({"word": text, **numbers, "text": text}))}
    fields |= {"consensus_rank": rank, "dropped_ranks": pa.list_(rank), "degradation": text}
    return pa.schema(fields | {"previous_unread_by": pa.list_(text)})


def _make_table(rows: Sequence[RescoredRow], schema: pa.Schema) -> pa.Table:
    """Build the table of some rows, whose hypotheses come one after another in arrays."""
    import pyarrow as pa

    counts = [len(row.texts) for row in rows]
    n_hypotheses = sum(counts)
    scores = [np.concatenate([row.scores[k] for row in rows]) for k in range(2)]
    columns = [
        pa.array([*chain.from_iterable(row.texts for row in rows)], pa.string()),
        *(
            pa.array(np.concatenate(ranks), pa.int32())
            for ranks in (
                [np.arange(1, count + 1) for count in counts],
                [row.original_ranks for row in rows],
            )
        ),
        *map(pa.array, scores),
        _map_components(rows, counts),
    ]
    for name, kind in _other_types().items():
        if any(name in row.others for row in rows):
            values = (row.others.get(name) or repeat(None, len(row.texts)) for row in rows)
            columns.append(pa.array([*chain.from_iterable(values)], kind))
        else:
            columns.append(pa.nulls(n_hypotheses, kind))
    hypotheses = schema.field("hypotheses").type
    structs = pa.StructArray.from_arrays(columns, fields=[*hypotheses.value_type])
    lists = pa.ListArray.from_arrays(_offsets(counts), structs, type=hypotheses)
    others = pa.schema([field for field in schema if field.name != "hypotheses"])
    table = pa.Table.from_pylist([row.record for row in rows], others)
    return table.add_column(schema.get_field_index("hypotheses"), schema.field("hypotheses"), lists)


def _map_components(rows: Sequence[RescoredRow], counts: Sequence[int]) -> pa.MapArray:
    """Return the components of each hypothesis, by name."""
    import pyarrow as pa

    names = [*dict.fromkeys(chain.from_iterable(row.names for row in rows))]
    keys = {row.names: [*map(names.index, row.names)] for row in rows}
    numbers = [np.tile(keys[row.names], count) for row, count in zip(rows, counts, strict=True)]
    values = [row.scores[2:].T.ravel() for row in rows]
    sizes = np.repeat([len(row.names) for row in rows], counts)
    key_texts = pa.array(names, pa.string()).take(pa.array(np.concatenate(numbers), pa.int32()))
    return pa.MapArray.from_arrays(_offsets(sizes), key_texts, np.concatenate(values))


def _offsets(sizes: Sequence[int] | np.ndarray) -> pa.Array:
    """Return where each of several arrays of these sizes begins, and where the last one ends."""
    import pyarrow as pa

    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
