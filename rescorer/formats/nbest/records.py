"""Build lists from records: objects of JSON, or rows of a table, with the fields of this project's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rescorer.errors import InvalidList
from rescorer.formats.common import add_location, stream_names
from rescorer.formats.conversation_fields import parse_phrases, parse_utterances
from rescorer.formats.field_map import FieldMap
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.score_units import NATURAL, Units, stream_to_nats
from rescorer.types import Hypothesis, NBestList

MAX_FIELDS_IN_MESSAGE = 8
"""Maximum number of field names that the error about a missing field mentions."""


def parse_record(
    record: dict[str, Any],
    names: FieldMap,
    declared: Mapping[str, Units],
    group_of: Callable[[str], str] | None,
    file: str,
    line: int,
) -> NBestList | InvalidList:
    """Build a list from a record, or return the error with its place.

    Args:
        names: Names of the fields of the record; those that it does not name become the list's fields.
        declared: Units of streams, as the file declares them.
        group_of: Function that returns the group for the id of a list without one.
        line: 1-based number of the line or row.
    """
    try:
        return _parse_list(record, names, declared, group_of, line)
    except InvalidList as error:
        return add_location(error, file, line)


def _parse_list(
    record: dict[str, Any],
    names: FieldMap,
    declared: Mapping[str, Units],
    group_of: Callable[[str], str] | None,
    line: int,
) -> NBestList:
    """Build a list from ``record``. Pops the known fields; the remaining ones become the list's fields."""
    list_id = str(line)
    if names.id:
        list_id = _check_text(_id_to_text(record.pop(names.id, None)), names.id, "", required=True)
    if names.hypotheses not in record:
        others = ", ".join([*record][:MAX_FIELDS_IN_MESSAGE]) or "none"
        message = (
            f"missing; if the field has another name, give --map hypotheses=FIELD (other fields: {others})"
        )
        raise InvalidList(message, list_id=list_id, field=names.hypotheses)
    items = record.pop(names.hypotheses)
    if not isinstance(items, list) or not items:
        message = f"expected a non-empty array, got {describe_type(items)}"
        raise InvalidList(message, list_id=list_id, field=names.hypotheses)
    hypotheses, columns = _parse_columns(items, names) or _parse_rows(items, names, list_id)
    if not columns:
        _check_no_parallel_scores(record, names, len(items), list_id)
    group = _check_text(record.pop(names.group, None), names.group, list_id)
    if not group and group_of is not None:
        group = group_of(list_id)
    return NBestList(
        id=list_id,
        hypotheses=hypotheses,
        streams=_convert_streams(columns, names, declared, list_id),
        context=_check_text(record.pop(names.context, None), names.context, list_id) or "",
        reference=_check_text(record.pop(names.reference, None), names.reference, list_id),
        group=group or "",
        previous=parse_utterances(record.pop(names.previous, None), names.previous, list_id),
        phrases=parse_phrases(record.pop(names.phrases, None), names.phrases, list_id),
        fields=record,
    )


def _check_no_parallel_scores(record: dict[str, Any], names: FieldMap, n: int, list_id: str) -> None:
    """Raise InvalidList if scores are in an array beside the hypotheses, where nothing reads them.

    Args:
        record: the fields of the list.
        n: number of hypotheses.
    """
    for name in filter(None, (names.scores, *(stream.field for stream in names.streams.values()))):
        found = record.get(name)
        columns = found.values() if isinstance(found, dict) else [found]
        if any(isinstance(column, list) and len(column) == n for column in columns):
            example = f'{{"{names.text}": "a b", "scores": {{"acoustic": -310.2}}}}'
            message = f"beside the hypotheses; expected the scores of each inside it: {example}"
            raise InvalidList(message, list_id=list_id, field=name)


Columns = dict[str, list[Any]]
"""Unconverted scores of all hypotheses by stream name, in input order; None where one has no score."""


def _parse_columns(items: list[Any], names: FieldMap) -> tuple[tuple[Hypothesis, ...], Columns] | None:
    """Parse hypotheses whose scores are all fields of their own, or return None.

    Does what ``_parse_rows`` does, column by column, in half the time.
    """
    if not names.streams or set(map(type, items)) != {dict}:
        return None
    texts = [item.get(names.text) for item in items]
    if set(map(type, texts)) != {str} or any(names.scores in item for item in items):
        return None
    for item in items:
        del item[names.text]
    columns = {
        name: [item.pop(stream.field, None) for item in items] for name, stream in names.streams.items()
    }
    if any(None in values for values in columns.values()):
        columns = {name: columns[name] for name in stream_names(_rows(columns))}
    return tuple(map(Hypothesis, texts, items)), columns


def _rows(columns: Columns) -> list[dict[str, Any]]:
    """The scores of each hypothesis by stream name."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _parse_rows(items: list[Any], names: FieldMap, list_id: str) -> tuple[tuple[Hypothesis, ...], Columns]:
    """Parse hypotheses one by one; raises InvalidList if one is invalid."""
    pairs = [_parse_hypothesis(item, names, list_id, index) for index, item in enumerate(items)]
    rows = [scores for _, scores in pairs]
    columns = {name: [scores.get(name) for scores in rows] for name in stream_names(rows)}
    return tuple(hypothesis for hypothesis, _ in pairs), columns


def _parse_hypothesis(
    item: Any, names: FieldMap, list_id: str, index: int
) -> tuple[Hypothesis, dict[str, Any]]:
    """Return a hypothesis and its unconverted scores by stream name."""
    if isinstance(item, str):
        return Hypothesis(item), {}
    if not isinstance(item, dict):
        message = f"expected an object or a string, got {describe_type(item)}"
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=names.hypotheses)
    text = item.pop(names.text, None)
    if not isinstance(text, str):
        message = f"expected a string, got {describe_type(text)}"
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=names.text)
    scores = item.pop(names.scores, None) if names.scores else None
    if scores is None:
        scores = {}
    if not isinstance(scores, dict):
        message = f"expected an object, got {describe_type(scores)}"
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=names.scores)
    if not names.streams:
        return Hypothesis(text, item), scores
    mapped = {}
    for name, stream in names.streams.items():
        container = item if stream.field in item else scores
        mapped[name] = container.pop(stream.field, None)
    if not scores:
        return Hypothesis(text, item), mapped
    if duplicates := sorted(mapped.keys() & scores.keys()):
        message = "this stream is also mapped to another field by an option"
        field = f'{names.scores}["{duplicates[0]}"]'
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=field)
    return Hypothesis(text, item), scores | mapped


def _convert_streams(
    columns: Columns, names: FieldMap, declared: Mapping[str, Units], list_id: str
) -> dict[str, tuple[float, ...]]:
    """Convert to nats the streams for which at least one hypothesis has a value."""
    streams = {}
    for name, scores in columns.items():
        mapped = names.streams.get(name)
        values = stream_to_nats(
            name,
            scores,
            mapped.units if mapped else declared.get(name, NATURAL),
            list_id=list_id,
            field=mapped.field if mapped else f'{names.scores}["{name}"]',
        )
        if values is not None:
            streams[name] = values
    return streams


def _id_to_text(value: Any) -> Any:
    """Convert an integer id to text; many files number their lists. Other values are returned unchanged."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_text(value: Any, field: str, list_id: str, required: bool = False) -> Any:
    """Return ``value`` if it is a string, or None if it is missing and not required."""
    if value is None and not required:
        return None
    if not isinstance(value, str) or (required and not value):
        expected = "a non-empty string" if required else "a string"
        raise InvalidList(f"expected {expected}, got {describe_type(value)}", list_id=list_id, field=field)
    return value
