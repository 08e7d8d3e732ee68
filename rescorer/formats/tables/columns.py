"""Turn rows of a table into records as JSON lines have them.

Hypotheses are a column of arrays of objects, as in JSON lines; or a column of arrays of texts, and beside it
a column of arrays of numbers for each score stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.field_map import LIST_FIELDS, FieldMap

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = "texts"
"""Another name of a column of hypotheses that are texts only."""
Convert = Callable[[Any], Any]
"""Converts a value of a column, which is not null, to one that JSON can hold."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table that are read, and how they become fields.

    Args:
        converters: function for each column; None if its values stay as they are.
        names: names of the fields.
        texts: column of arrays of texts; empty if hypotheses are objects.
        streams: columns of arrays of numbers, one per hypothesis.
    """

    converters: dict[str, Convert | None]
    names: FieldMap
    texts: str = ""
    streams: tuple[str, ...] = ()

    def read_rows(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Yield the rows of a batch as records; fields without a value are left out."""
        columns = {name: self._read_column(batch, name) for name in self.converters}
        for index in range(batch.num_rows):
            yield {name: values[index] for name, values in columns.items() if values[index] is not None}

    def _read_column(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        values = _as_plain(batch.column(name)).to_pylist()
        if (convert := self.converters[name]) is None:
            return values
        return [None if value is None else convert(value) for value in values]

    def join(self, record: dict[str, Any]) -> dict[str, Any]:
        """Make hypotheses of arrays of texts and of scores; other records stay as they are.

        Raises:
            InvalidList: an array of scores has another length than that of the texts.
        """
        texts = record.pop(self.texts, None) if self.texts else None
        if texts is None:
            return record
        hypotheses: list[dict[str, Any]] = [{} if text is None else {self.names.text: text} for text in texts]
        for name in self.streams:
            values = record.pop(name, None)
            own_field = any(stream.field == name for stream in self.names.streams.values())
            for hypothesis, value in _pair(hypotheses, values, name, record.get(self.names.id)):
                place = hypothesis if own_field else hypothesis.setdefault(self.names.scores, {})
                place[name] = value
        scores = record.get(self.names.scores) if self.names.scores else None
        if isinstance(scores, dict):
            for name, values in record.pop(self.names.scores).items():
                field = f'{self.names.scores}["{name}"]'
                for hypothesis, value in _pair(hypotheses, values, field, record.get(self.names.id)):
                    hypothesis.setdefault(self.names.scores, {})[name] = value
        return {**record, self.names.hypotheses: hypotheses}


def _pair(
    hypotheses: list[dict[str, Any]], values: Any, field: str, list_id: Any
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Pair hypotheses with their scores; without an array there are none."""
    if values is None:
        return iter(())
    if len(values) != len(hypotheses):
        message = f"{len(values)} scores for {len(hypotheses)} texts; expected one each"
        raise InvalidList(message, list_id="" if list_id is None else str(list_id), field=field)
    return zip(hypotheses, values, strict=True)


def find_columns(schema: pa.Schema, names: FieldMap, file: str) -> Columns:
    """Choose the columns of a table that are read: all whose values JSON can hold.

    Raises:
        FormatError: two columns have the same name, or a column of a field has a type that it cannot have.
    """
    import pyarrow as pa

    if len(set(schema.names)) < len(schema.names):
        raise FormatError("two columns have the same name", file=file)
    hypotheses = names.hypotheses
    if hypotheses == FieldMap().hypotheses and hypotheses not in schema.names and TEXTS in schema.names:
        hypotheses = TEXTS
    needed = {hypotheses, *(getattr(names, name) for name in LIST_FIELDS if name != "hypotheses")}
    converters: dict[str, Convert | None] = {}
    for column in schema:
        try:
            converters[column.name] = find_converter(_plain_type(column.type))
        except ValueError:
            if column.name in needed:
                message = f"the column has the type {column.type}, which no field of lists has"
                raise FormatError(message, file=file, field=column.name) from None
    if hypotheses not in converters or not _is_list_of(schema.field(hypotheses).type, _is_text):
        return Columns(converters, names)
    mapped = {stream.field for stream in names.streams.values()}
    is_score = partial(_is_list_of, is_value=_is_number if mapped else pa.types.is_floating)
    arrays = [column.name for column in schema if is_score(column.type)]
    streams = [name for name in arrays if name not in needed and (not mapped or name in mapped)]
    return Columns(converters, names, hypotheses, tuple(streams))


def find_converter(kind: pa.DataType) -> Convert | None:
    """The function that converts values of a type; None if JSON can hold them as they are.

    Raises:
        ValueError: JSON cannot hold them: bytes, for instance.
    """
    import pyarrow as pa

    if pa.types.is_null(kind) or pa.types.is_boolean(kind) or _is_number(kind) or _is_text(kind):
        return None
    if pa.types.is_decimal(kind):
        return float
    if pa.types.is_date(kind):
        return str
    if pa.types.is_dictionary(kind):
        return find_converter(kind.value_type)
    if _is_list(kind):
        inner = find_converter(kind.value_type)
        return None if inner is None else partial(_convert_items, inner)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return partial(_convert_object, {field.name: find_converter(field.type) for field in fields})
    if pa.types.is_map(kind) and _is_text(kind.key_type):
        return partial(_convert_pairs, find_converter(kind.item_type))
    raise ValueError(kind)


def _convert_items(convert: Convert, items: list[Any]) -> list[Any]:
    return [None if item is None else convert(item) for item in items]


def _convert_object(converters: dict[str, Convert | None], value: dict[str, Any]) -> dict[str, Any]:
    """Convert the fields of an object, without those that have no value."""
    return {
        name: convert(value[name]) if convert else value[name]
        for name, convert in converters.items()
        if value[name] is not None
    }


def _convert_pairs(convert: Convert | None, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: convert(value) if convert else value for name, value in pairs if value is not None}


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column as it is read; times become text."""
    import pyarrow as pa

    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_time(kind) else kind


def _as_plain(column: pa.Array) -> pa.Array:
    kind = _plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_list_of(kind: pa.DataType, is_value: Callable[[pa.DataType], bool]) -> bool:
    return _is_list(kind) and is_value(kind.value_type)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
