"""Build lists from records: objects of JSON, or rows of a table, with the fields of this project's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rescorer.errors import InvalidList
from rescorer.formats.common import add_location, stream_names
from rescorer.formats.conversation_fields import parse_phrases, parse_utterances
from rescorer.formats.field_map import FieldMap
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.nbest.known_fields import (
    STREAM,
    explain_missing_hypotheses,
    explain_missing_id,
    explain_missing_text,
    find_names,
    is_pair,
    take_scores,
)
from rescorer.formats.score_units import NATURAL, Units, stream_to_nats
from rescorer.types import Hypothesis, NBestList


def parse_record(
    record: dict[str, Any],
    names: FieldMap,
    declared: Mapping[str, Units],
    group_of: Callable[[str], str] | None,
    file: str,
    line: int | None,
    number: str = "",
) -> NBestList | InvalidList:
    """Build a list from a record, or return the error with its place.

    Args:
        names: Names of the fields of the record; those that it does not name become the list's fields.
        declared: Units of streams, as the file declares them.
        group_of: Function that returns the group for the id of a list without one.
        line: 1-based number of the line or row, if it has one.
        number: What is the id of a list without one, if that is not its line.
    """
    try:
        return _parse_list(record, find_names(record, names), declared, group_of, number or str(line))
    except InvalidList as error:
        return add_location(error, file, line)


def _parse_list(
    record: dict[str, Any],
    names: FieldMap,
    declared: Mapping[str, Units],
    group_of: Callable[[str], str] | None,
    number: str,
) -> NBestList:
    """Build a list from ``record``. Pops the known fields; the remaining ones become the list's fields."""
    if names.hypotheses not in record:
        given = record.get(names.id)
        list_id = str(given) if isinstance(given, (str, int)) else number
        raise InvalidList(explain_missing_hypotheses(record, names), list_id=list_id, field=names.hypotheses)
    list_id = _parse_id(record, names.id) if names.id else number
    items = record.pop(names.hypotheses)
    if not isinstance(items, list) or not items:
        message = f"expected a non-empty array, got {describe_type(items)}"
        raise InvalidList(message, list_id=list_id, field=names.hypotheses)
    hypotheses, columns = _parse_columns(items, names) or _parse_rows(items, names, list_id)
    columns = columns or take_scores(record, names, len(items), list_id)
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
    if is_pair(item):
        return Hypothesis(item[0]), {STREAM: item[1]}
    if not isinstance(item, dict):
        message = f"expected an object or a string, got {describe_type(item)}"
        if isinstance(item, list) and item and all(isinstance(token, int) for token in item):
            message += " of token ids; decode them first (`processor.batch_decode`, skip_special_tokens=True)"
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=names.hypotheses)
    if not isinstance(item.get(names.text), str):
        message = explain_missing_text(item, names.text)
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=names.text)
    text = item.pop(names.text)
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


def _parse_id(record: dict[str, Any], name: str) -> str:
    """Take the id out of a record; an integer becomes text, since many files number their lists."""
    value = record.pop(name, None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        hint = explain_missing_id(record) if value is None else ""
        raise InvalidList(f"expected a non-empty string, got {describe_type(value)}{hint}", field=name)
    return value


def _check_text(value: Any, field: str, list_id: str) -> Any:
    """Return ``value`` if it is a string, or None if it is missing."""
    if not isinstance(value, str | None):
        raise InvalidList(f"expected a string, got {describe_type(value)}", list_id=list_id, field=field)
    return value
