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
MAX_NAMES = 8
"""Largest number of columns that an error names."""
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
        values = _without_times(batch.column(name)).to_pylist()
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
            for hypothesis, value in _pair(hypotheses, values, name, self._find_id(record)):
                place = hypothesis if own_field else hypothesis.setdefault(self.names.scores, {})
                place[name] = value
        scores = record.pop(self.names.scores, None) if self.names.scores else None
        if not isinstance(scores, dict | None):
            message = "expected a struct or map of arrays beside an array of texts"
            raise InvalidList(message, list_id=self._find_id(record), field=self.names.scores)
        for name, values in (scores or {}).items():
            field = f'{self.names.scores}["{name}"]'
            for hypothesis, value in _pair(hypotheses, values, field, self._find_id(record)):
                hypothesis.setdefault(self.names.scores, {})[name] = value
        return {**record, self.names.hypotheses: hypotheses}

    def _find_id(self, record: dict[str, Any]) -> str:
        value = record.get(self.names.id)
        return "" if value is None else str(value)


def _pair(
    hypotheses: list[dict[str, Any]], values: Any, field: str, list_id: str
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Pair hypotheses with their scores; without an array there are none."""
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
    """Choose the columns of a table that are read: all whose values JSON can hold.

    Raises:
        FormatError: two columns have the same name, there are no ids or no hypotheses, or a column of a field
            has a type that it cannot have.
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
    if not _is_list_of(schema.field(hypotheses).type, _is_text):
        if hypotheses == TEXTS:
            message = f"the column has the type {schema.field(TEXTS).type}; expected a list of texts"
            raise FormatError(message, file=file, field=TEXTS)
        return Columns(converters, names)
    mapped = {stream.field for stream in names.streams.values()}
    is_score = partial(_is_list_of, is_value=_is_number if mapped else _is_fractional)
    arrays = [column.name for column in schema if is_score(column.type)]
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
    """The function that converts values of a type; None if JSON can hold them as they are.

    Raises:
        ValueError: JSON cannot hold them: bytes, for instance.
    """
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return float
    if pa.types.is_date(kind):
        return str
    if pa.types.is_null(kind) or pa.types.is_boolean(kind) or _is_number(kind) or _is_text(kind):
        return None
    if pa.types.is_dictionary(kind):
        return find_converter(kind.value_type)
    if _is_list(kind):
        inner = find_converter(kind.value_type)
        return None if inner is None else partial(_convert_items, inner)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        if len({field.name for field in fields}) < len(fields):
            raise ValueError(kind)
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


def _type_without_times(kind: pa.DataType) -> pa.DataType:
    """The type of a column as it is read; dates and times become text."""
    import pyarrow as pa

    is_time = pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_date(kind)
    return pa.string() if is_time else kind


def _without_times(column: pa.Array) -> pa.Array:
    """Turn dates and times into text; times with a zone into UTC, since not every machine knows all zones."""
    import pyarrow as pa
    from pyarrow import compute

    kind = _type_without_times(column.type)
    if kind == column.type:
        return column
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        utc = column.cast(pa.timestamp(column.type.unit)).cast(kind)
        return compute.binary_join_element_wise(utc, "Z", "")
    return column.cast(kind)


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    tests = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return any(getattr(pa.types, test)(kind) for test in tests)


def _is_list_of(kind: pa.DataType, is_value: Callable[[pa.DataType], bool]) -> bool:
    import pyarrow as pa

    if not _is_list(kind):
        return False
    value = kind.value_type
    return is_value(value.value_type if pa.types.is_dictionary(value) else value)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind)) or _is_fractional(kind)


def _is_fractional(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
