"""Find hypotheses, scores and references in records under the names that other programs give them.

    {"sequences": ["a b", "a c"], "sequences_scores": [-0.2, -0.3]}              texts of transformers' beams
    {"text": ["a b", "a c"], "scores": [-0.2, -0.3]}                             several generated texts
    {"input": ["a b", "a c"], "output": "a b"}                                   HyPoradise
    {"id": "u1", "beams": [["a b", -0.2], ["a c", -0.3]]}                        pairs of text and score

Fields that ``--map`` names have these names; others are only found under their usual ones. What looks like
hypotheses or an id under another name is named in the error, with the option that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from rescorer.errors import InvalidList, pluralise
from rescorer.formats.field_map import FieldMap
from rescorer.formats.io.json_records import describe_type

DEFAULT_NAMES = FieldMap()
STREAM = "first_pass"
"""Name of the stream of scores that have no name of their own."""
USUAL_NAMES = ("beams", "candidates", "n_best", "sequences")
"""Names of arrays of hypotheses besides ``hypotheses``, in order of preference; ``text`` is one only next to
scores, since it may have the words of one text."""
TEXT_NAMES = ("text", "transcript", "transcription", "hypothesis", "hyp", "sentence", "generated_text")
"""Names of the texts of hypotheses, for messages; only the first is read without an option."""
REFERENCE_NAMES = ("ref", "reference", "ground_truth", "target", "label", "transcript", "output")
"""Names of references, for messages; only ``reference`` is read without an option."""
SCORE_NAMES = ("sequences_scores", "scores")
"""Names of arrays of scores beside the hypotheses."""
ID_NAME = re.compile(
    r"(?:^|_)(?:id|uid|uttid|utt|utterance|key|name|file|filename|filepath|audio|wav|path|recording)(?:$|_)",
    re.IGNORECASE,
)
"""Matches the names of fields that may hold the id of a list."""
PART_NAME = re.compile(
    r"word|token|piece|symbol|char|chunk|phone|sentence|paragraph|segment|utterance", re.IGNORECASE
)
"""Matches the names of arrays that hold the parts of one text, which are never proposed as hypotheses."""
MAX_NAMED = 8
"""Maximum number of field names that an error mentions."""


def find_names(record: Mapping[str, Any], names: FieldMap) -> FieldMap:
    """Return the names of the fields of a record, if ``names`` does not fit and other usual ones do."""
    if names.hypotheses in record or names.hypotheses != DEFAULT_NAMES.hypotheses:
        return names
    if is_texts(record.get("input")) and isinstance(record.get("output"), str):
        reference = names.reference if names.reference in record else "output"
        return replace(names, hypotheses="input", reference=reference)
    for name in USUAL_NAMES:
        if is_hypotheses(record.get(name)) or (name == "sequences" and isinstance(record.get(name), list)):
            return replace(names, hypotheses=name)
    texts = record.get("text")
    if is_texts(texts) and any(_is_column(record.get(name), len(texts)) for name in SCORE_NAMES):
        return replace(names, hypotheses="text")
    return names


def has_lists(value: Any) -> str:
    """Return the name of the hypotheses of a record, or of the first in an array; empty if it has none."""
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict):
        return ""
    name = find_names(value, DEFAULT_NAMES).hypotheses
    return name if isinstance(value.get(name), list) else ""


def may_number(record: Mapping[str, Any], names: FieldMap) -> bool:
    """Whether a record has neither an id nor a field that looks like one, so that its position is its id."""
    return names.id == DEFAULT_NAMES.id and names.id not in record and not _find_id_names(record)


def is_texts(value: Any) -> TypeGuard[list[str]]:
    """Whether a value is an array of texts."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def is_hypotheses(value: Any, text_names: tuple[str, ...] = TEXT_NAMES[:1]) -> bool:
    """Whether a value is an array of texts, of pairs of text and score, or of objects with a text."""

    def is_one(item: Any) -> bool:
        if isinstance(item, dict):
            return any(isinstance(item.get(name), str) for name in text_names)
        return isinstance(item, str) or is_pair(item)

    return isinstance(value, list) and bool(value) and all(map(is_one, value))


def is_pair(item: Any) -> bool:
    """Whether a hypothesis is an array of its text and its score."""
    return (
        isinstance(item, list)
        and len(item) == 2
        and isinstance(item[0], str)
        and isinstance(item[1], (int, float))
        and not isinstance(item[1], bool)
    )


def take_scores(record: dict[str, Any], names: FieldMap, size: int, list_id: str) -> dict[str, list[Any]]:
    """Take arrays of scores beside the hypotheses out of a record; return them by the name of their stream.

    Raises:
        InvalidList: If an array of numbers does not have one for each hypothesis.
    """
    columns: dict[str, list[Any]] = {}
    for stream, field in names.streams.items():
        if isinstance(found := record.get(field.field), list):
            _check_column(found, size, list_id, field.field)
            columns[stream] = record.pop(field.field)
    for name in () if columns else (name for name in SCORE_NAMES if name in record and names.scores):
        found = record[name]
        named = found if isinstance(found, dict) else {STREAM: found}
        if named and all(map(_has_numbers, named.values())):
            for stream, values in named.items():
                _check_column(values, size, list_id, name if found is values else f'{name}["{stream}"]')
            del record[name]
            return dict(named)
    return columns


def _has_numbers(values: Any) -> bool:
    """Whether a value is an array with a number; arrays of arrays are scores of tokens."""
    return isinstance(values, list) and any(type(value) in (int, float) for value in values)


def _check_column(values: list[Any], size: int, list_id: str, field: str) -> None:
    """Raise InvalidList unless there is a score for each hypothesis."""
    if len(values) != size:
        hypotheses = pluralise(size, "hypothesis", "hypotheses")
        message = f"{pluralise(len(values), 'score')} for {hypotheses}; expected one for each"
        raise InvalidList(message, list_id=list_id, field=field)


def _is_column(values: Any, size: int) -> TypeGuard[list[float]]:
    return (
        isinstance(values, list)
        and len(values) == size
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    )


def explain_missing_hypotheses(record: Mapping[str, Any], names: FieldMap = DEFAULT_NAMES) -> str:
    """Say which field may hold the hypotheses of a record that has none, and how to read it."""
    if options := suggest_map(record, names):
        return f"missing; {options}"
    others = ", ".join([name for name in record if name != names.id][:MAX_NAMED]) or "none"
    if rows := suggest_table(record):
        rows = f"; {rows}"
    return (
        f"missing{rows}; if the field has another name, give --map hypotheses=FIELD (other fields: {others})"
    )


def suggest_table(record: Any) -> str:
    """Say which option reads a record that is one hypothesis, on a line of its own; empty if none does."""
    text = _find_texts(record, TEXT_NAMES) if isinstance(record, dict) else ""
    ids = [name for name in _find_id_names(record) if name != text] if text else []
    if not ids:
        return ""
    return f"if each line is one hypothesis, `--format table:id={ids[0]},text={text}` reads {text!r}"


def suggest_map(value: Any, names: FieldMap = DEFAULT_NAMES) -> str:
    """Say which option reads a record, or the first of an array, if one of its fields looks like hypotheses.

    Args:
        names: Names of fields that need no option.
    """
    record = value[0] if isinstance(value, list) and value else value
    if not isinstance(record, dict):
        return ""
    names_found = (name for name, items in record.items() if is_hypotheses(items, TEXT_NAMES))
    name = next((name for name in names_found if not PART_NAME.search(name)), "")
    if not name:
        return ""
    maps, items = {"hypotheses": name}, record[name]
    if isinstance(items[0], dict) and not is_hypotheses(items, (names.text,)):
        maps["text"] = next(key for key in TEXT_NAMES if isinstance(items[0].get(key), str))
    if names.reference not in record and (found := _find_texts(record, REFERENCE_NAMES)):
        maps["reference"] = found
    if names.id and names.id not in record and (ids := _find_id_names(record)):
        maps["id"] = ids[0]
    option = ",".join(f"{key}={value}" for key, value in maps.items())
    return f"`--map {option}` reads {name!r}, {describe_items(items)}"


def _find_texts(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((name for name in names if isinstance(record.get(name), str)), "")


def explain_missing_text(item: Mapping[str, Any], name: str) -> str:
    """Say that a hypothesis has no text, and which field may hold it."""
    message = f"expected a string, got {describe_type(item.get(name))}"
    likely = [key for key in TEXT_NAMES if key != name and isinstance(item.get(key), str)]
    return f"{message}; `--map text={likely[0]}` reads {likely[0]!r}" if likely else message


def explain_missing_id(record: Mapping[str, Any]) -> str:
    """Say which field may hold the id of a record without one; empty if no field looks like it."""
    likely = _find_id_names(record)
    return f"; `--map id={likely[0]}` reads {likely[0]!r}, `--map id=` numbers the lists" if likely else ""


def describe_items(items: list[Any]) -> str:
    """Describe an array of hypotheses: ``a list of 4 objects with text``."""
    if isinstance(items[0], dict):
        key = next((key for key in TEXT_NAMES if isinstance(items[0].get(key), str)), "text")
        return f"a list of {pluralise(len(items), 'object')} with {key}"
    if isinstance(items[0], list):
        return f"a list of {pluralise(len(items), 'pair')} of text and score"
    return f"a list of {pluralise(len(items), 'text')}"


def _find_id_names(record: Mapping[str, Any]) -> list[str]:
    def is_name(value: Any) -> bool:
        return (isinstance(value, str) and bool(value)) or type(value) is int

    return [name for name, value in record.items() if ID_NAME.search(name) and is_name(value)]
