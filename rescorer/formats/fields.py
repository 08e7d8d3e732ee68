"""Fields of lists and hypotheses: word times, previous utterances, phrases, and names in other programs.

In JSON, a previous utterance is a text, or an object with ``text``, ``speaker`` and ``confidence``; a phrase
is a text, or an object with ``text``, ``weight``, ``spellings`` and ``slot``.

A *record* is the JSON object of a list. Other programs write hypotheses, scores and references under other
names, some of which are known:

    {"sequences": ["a b", "a c"], "sequences_scores": [-0.2, -0.3]}              texts of transformers' beams
    {"text": ["a b", "a c"], "scores": [-0.2, -0.3]}                             several generated texts
    {"input": ["a b", "a c"], "output": "a b"}                                   HyPoradise
    {"id": "u1", "beams": [["a b", -0.2], ["a c", -0.3]]}                        pairs of text and score

A field that ``--map`` names is read under that name only; all others are read under their usual names. If a
record lacks hypotheses or an id, but another field looks like them, the error suggests the option for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeGuard, TypeVar

from rescorer.errors import ConfigError, InvalidList, did_you_mean, pluralise
from rescorer.formats.common import LINE_BREAK, NATURAL, STREAM, Units, check_type, split_words
from rescorer.formats.io.json_io import describe_type, is_number
from rescorer.types import MAX_NUMBER, Generated, NBestList, Phrase, Utterance

WORDS_FIELD = "words"
"""Field with one object per word: ``word``, ``start_s``, ``duration_s``, optional ``confidence``."""
TIME_KEYS = ("start_s", "duration_s")
NUMBER_KEYS = (*TIME_KEYS, "confidence")
TIME_DECIMALS = 6
"""Number of decimals to which a duration, the difference of two times, is rounded."""


def get_word_times(
    nbest: NBestList, index: int = 0, words: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return the objects in the ``words`` field of hypothesis ``index``, after checking them.

    Args:
        words: the words that the field must have; None if any words will do.

    Raises:
        InvalidList: the hypothesis has a text but no such field, the field is not a list of words with
            times, or it has other words.
    """

    def error(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=nbest.id, hypothesis=index, field=field)

    hypothesis = nbest.hypotheses[index]
    times = hypothesis.fields.get(WORDS_FIELD, None if split_words(hypothesis.text) else [])
    if not isinstance(times, list):
        raise error("expected the words with their times, which the format needs", WORDS_FIELD)
    for position, entry in enumerate(times):
        values = entry if isinstance(entry, dict) else {}
        word = values.get("word")
        if not (isinstance(word, str) and split_words(word) == [word] and not LINE_BREAK.search(word)):
            raise error("expected a word without white space", f"{WORDS_FIELD}[{position}].word")
        numbers = {key: values[key] for key in NUMBER_KEYS if values.get(key) is not None}
        if not {*TIME_KEYS} <= numbers.keys() or not all(map(is_finite_number, numbers.values())):
            message = "expected numbers: start_s, duration_s and, optionally, confidence"
            raise error(message, f"{WORDS_FIELD}[{position}]")
        for key in TIME_KEYS:
            if numbers[key] < 0:
                message = f"expected a non-negative number of seconds, got {numbers[key]!r}"
                raise error(message, f"{WORDS_FIELD}[{position}].{key}")
    if words is not None and [entry["word"] for entry in times] != list(words):
        raise error("differ from the words of the text", WORDS_FIELD)
    return times


def build_word_times(words: Sequence[str], spans: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Build the value of the ``words`` field from words and their (start, end) times in seconds."""
    return [
        {"word": word, "start_s": start, "duration_s": round(end - start, TIME_DECIMALS)}
        for word, (start, end) in zip(words, spans, strict=True)
    ]


def is_finite_number(value: object) -> bool:
    """Whether a value is a finite int or float; a boolean is not a number."""
    return type(value) in (int, float) and -MAX_NUMBER <= value <= MAX_NUMBER  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class StreamField:
    """The name of the field that holds the scores of one stream, and the units of these scores."""

    field: str
    units: Units = NATURAL


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Field names of a file; the defaults are the names of this project's own format.

    Raises:
        ConfigError: a required name is empty, or one name is used for two fields.
    """

    id: str = "id"
    """Field with the id of a list. If it is empty, the number of the list's line is the id."""
    hypotheses: str = "hypotheses"
    """Field with the array of hypotheses. A hypothesis is an object, or a string if it has only a text."""
    text: str = "text"
    scores: str = "scores"
    """Field of a hypothesis with all its scores, as an object with stream names as keys; empty if there is
    none."""
    reference: str = "reference"
    context: str = "context"
    previous: str = "previous"
    """Field with an array of the utterances that precede the list's utterance, oldest first."""
    phrases: str = "phrases"
    """Field with an array of names and phrases that are more likely than usual."""
    group: str = "group"
    streams: Mapping[str, StreamField] = field(default_factory=dict)
    """For each stream name, the field that holds the scores of this stream.

    Such a field is looked up in the hypothesis first, then in its object of scores.
    """

    def __post_init__(self) -> None:
        for name in ("hypotheses", "text"):
            if not getattr(self, name):
                raise ConfigError(f"--map {name}=: expected the name of a field")
        list_fields = [getattr(self, name) for name in LIST_FIELDS]
        duplicates = {name for name in list_fields if name and list_fields.count(name) > 1}
        if duplicates:
            raise ConfigError(f"--map: {', '.join(sorted(duplicates))} is mapped to two fields")


LIST_FIELDS = ("id", "hypotheses", "reference", "context", "previous", "phrases", "group")
"""The attributes of ``FieldMap`` that name fields of lists; the others name fields of hypotheses."""
FIELD_NAMES = tuple(item.name for item in fields(FieldMap) if item.name != "streams")
"""Names that ``--map`` accepts before the ``=``."""


def parse_field_map(maps: Iterable[str] = (), streams: Iterable[str] = ()) -> FieldMap:
    """Parse the command-line options that describe a field map.

    >>> parse_field_map(["hypotheses=hyps,text=text_norm"], ["acoustic=am_log2:2"]).text
    'text_norm'

    Args:
        maps: values of ``--map``: pairs ``NAME=FIELD``, separated by commas; NAME is a field of ``FieldMap``.
        streams: values of ``--stream``: ``NAME=FIELD[:BASE[:SIGN]]``. The default is base e, sign log_prob.

    Raises:
        ConfigError: an option is malformed, or a name is unknown or given twice.
    """
    names: dict[str, str] = {}
    for part in (part for option in maps for part in option.split(",") if part.strip()):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in FIELD_NAMES:
            expected = f"expected NAME=FIELD, NAME one of {', '.join(FIELD_NAMES)}"
            raise ConfigError(f"--map {part!r}: {expected}{did_you_mean(name, FIELD_NAMES)}")
        if name in names:
            raise ConfigError(f"--map: {name} is given twice")
        names[name] = value
    by_stream: dict[str, StreamField] = {}
    for option in streams:
        name, stream = _parse_stream(option)
        if name in by_stream:
            raise ConfigError(f"--stream: {name} is given twice")
        by_stream[name] = stream
    return FieldMap(**names, streams=by_stream)


def _parse_stream(option: str) -> tuple[str, StreamField]:
    name, _, rest = option.partition("=")
    source, *units = rest.split(":")
    if not name or not source or len(units) > 2:
        raise ConfigError(f"--stream {option!r}: expected NAME=FIELD[:BASE[:SIGN]]")
    try:
        return name, StreamField(source, Units(*units))  # type: ignore[arg-type]  # checked by Units
    except ValueError as error:
        raise ConfigError(f"--stream {option!r}: {error}") from None


Item = TypeVar("Item")
SOUND_DECIMALS = 2
"""Number of decimals of distances between sounds, which are always multiples of 0.01."""


def parse_utterances(value: Any, field: str, list_id: str) -> tuple[Utterance, ...]:
    """Convert a JSON array of previous utterances, oldest first; None stands for an empty array.

    Raises:
        InvalidList: a value has the wrong type, or an object has an unknown key.
    """

    def build(item: dict[str, Any], place: str) -> Utterance:
        speaker = _parse_text(item, "speaker", place, list_id, "")
        return Utterance(item["text"], speaker, _parse_number(item, "confidence", place, list_id))

    return _parse_items(value, ("text", "speaker", "confidence"), build, field, list_id)


def parse_phrases(value: Any, field: str, list_id: str) -> tuple[Phrase, ...]:
    """Convert a JSON array of phrases; None stands for an empty array.

    Raises:
        InvalidList: a value has the wrong type, or an object has an unknown key.
    """

    def build(item: dict[str, Any], place: str) -> Phrase:
        spellings = item.get("spellings", [])
        are_texts = isinstance(spellings, list) and all(isinstance(text, str) for text in spellings)
        _check(are_texts, "an array of texts", spellings, f"{place}.spellings", list_id)
        weight = _parse_number(item, "weight", place, list_id)
        slot = _parse_text(item, "slot", place, list_id, "")
        return Phrase(item["text"], weight, tuple(spellings), slot)

    return _parse_items(value, ("text", "weight", "spellings", "slot"), build, field, list_id)


def _parse_items(
    value: Any, keys: tuple[str, ...], build: Callable[[dict[str, Any], str], Item], field: str, list_id: str
) -> tuple[Item, ...]:
    """Convert an array of texts or objects.

    Args:
        keys: the keys that an object may have; the key ``text`` is required.
        build: converts an object that has a text. It also gets the path of the object, for messages.
    """
    items = [] if value is None else value
    _check(isinstance(items, list), "an array of texts or objects", items, field, list_id)
    found = []
    for index, item in enumerate(items):
        place, known = f"{field}[{index}]", ", ".join(keys)
        item = {"text": item} if isinstance(item, str) else item
        _check(isinstance(item, dict), f"a text, or an object with {known}", item, place, list_id)
        if unknown := sorted(item.keys() - set(keys)):
            message = f"unknown key {unknown[0][:100]!r}; expected {known}"
            raise InvalidList(message, list_id=list_id, field=place)
        _parse_text(item, "text", place, list_id)
        found.append(build(item, place))
    return tuple(found)


def _parse_text(item: dict[str, Any], key: str, place: str, list_id: str, default: str | None = None) -> str:
    return check_type(item.get(key, default), str, list_id, f"{place}.{key}")


def _parse_number(item: dict[str, Any], key: str, place: str, list_id: str) -> float:
    """Return the number under a key of an object, or 1 if the object does not have the key."""
    number = item.get(key, 1.0)
    _check(is_number(number), "a number", number, f"{place}.{key}", list_id)
    try:
        return float(number)
    except OverflowError:  # an integer of more than 308 digits, which is out of range
        return math.inf


def _check(is_right: bool, expected: str, value: Any, field: str, list_id: str) -> None:
    if not is_right:
        raise InvalidList(f"expected {expected}, got {describe_type(value)}", list_id=list_id, field=field)


def utterance_records(utterances: Sequence[Utterance]) -> list[str | dict[str, Any]]:
    """Return previous utterances as the JSON array that ``parse_utterances`` reads."""

    def record(said: Utterance) -> str | dict[str, Any]:
        fields: dict[str, Any] = {"speaker": said.speaker} if said.speaker else {}
        fields |= {"confidence": said.confidence} if said.confidence != 1 else {}
        return {"text": said.text, **fields} if fields else said.text

    return list(map(record, utterances))


def phrase_records(phrases: Sequence[Phrase]) -> list[str | dict[str, Any]]:
    """Return phrases as the JSON array that ``parse_phrases`` reads."""

    def record(phrase: Phrase) -> str | dict[str, Any]:
        if phrase == Phrase(phrase.text):
            return phrase.text
        fields = {"text": phrase.text, "weight": phrase.weight, "spellings": list(phrase.spellings)}
        return {**fields, "slot": phrase.slot} if phrase.slot else fields

    return list(map(record, phrases))


def as_objects(records: Iterable[str | dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records with each text replaced by an object ``{"text": …}``, as in the service's messages."""
    return [{"text": record} if isinstance(record, str) else record for record in records]


def generated_record(made: Generated) -> dict[str, Any]:
    """Describe in JSON how a hypothesis was generated from another one. Ranks and words count from 1."""
    further = {"further": list(map(generated_record, made.further))} if made.further else {}
    return {
        "source_rank": made.source + 1,
        "first_word": made.start + 1,
        "last_word": made.end,
        "heard": made.heard,
        "phrase": made.phrase,
        "distance": round(made.distance, SOUND_DECIMALS),
        "phones": made.phones,
        **further,
    }


DEFAULT_NAMES = FieldMap()
USUAL_NAMES = ("beams", "candidates", "n_best", "sequences")
"""Further names under which other programs write the array of hypotheses, in order of preference.

An array ``text`` counts as the hypotheses only if there is an array of scores, too. Otherwise it may contain
the words of one text.
"""
TEXT_NAMES = ("text", "transcript", "transcription", "hypothesis", "hyp", "sentence", "generated_text")
"""Usual names of the field with a text. Only the first is read without an option; errors suggest others."""
REFERENCE_NAMES = ("ref", "reference", "ground_truth", "target", "label", "transcript", "output")
"""Usual names of a reference. Only ``reference`` is read without an option; errors suggest the others."""
SCORE_NAMES = ("sequences_scores", "scores")
"""Usual names of an array with one score per hypothesis."""
ID_NAME = re.compile(
    r"(?:^|_)(?:id|uid|uttid|utt|utterance|key|name|file|filename|filepath|audio|wav|path|recording)(?:$|_)",
    re.IGNORECASE,
)
"""Matches the names of fields that may hold the id of a list."""
PART_NAME = re.compile(
    r"word|token|piece|symbol|char|chunk|phone|sentence|paragraph|segment|utterance", re.IGNORECASE
)
"""Matches names of arrays that hold the parts of one text, so that messages do not suggest them as lists."""
MAX_NAMED = 8
"""Maximum number of field names that an error mentions."""


class PlainColumns(NamedTuple):
    """The hypotheses of a record as columns, in place of an array of objects that have nothing else."""

    texts: Sequence[str]
    streams: Mapping[str, Sequence[Any]]
    """Scores by the name of the stream, as read: one per hypothesis."""


def find_names(record: Mapping[str, Any], names: FieldMap) -> FieldMap:
    """Return the field names that fit a record: ``names``, or those of a known program if only these fit."""
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
    """Return the name of the field with hypotheses; "" if there is none.

    Args:
        value: a record, or an array of records, of which the first is looked at.
    """
    record = _first_record(value)
    name = find_names(record, DEFAULT_NAMES).hypotheses
    return name if isinstance(record.get(name), list) else ""


def _first_record(value: Any) -> dict[str, Any]:
    """Return an object, or the first object of an array; an empty dict if the value is something else."""
    record = value[0] if isinstance(value, list) and value else value
    return record if isinstance(record, dict) else {}


def may_number(record: Mapping[str, Any], names: FieldMap) -> bool:
    """Whether the position of a record may serve as its id: it has neither an id nor a field like an id."""
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
    """Whether a hypothesis is an array of its text and its score: ``["a b", -0.2]``."""
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and is_number(item[1])


def take_scores(record: dict[str, Any], names: FieldMap, size: int, list_id: str) -> dict[str, list[Any]]:
    """Remove the arrays of scores from a record, and return them by stream name.

    Such an array stands next to the array of hypotheses: ``"scores": [-0.2, -0.3]``. If there are arrays that
    ``--stream`` names, these are taken, or else an array with a usual name.

    Args:
        size: number of hypotheses.

    Raises:
        InvalidList: an array does not have one score for each hypothesis.
    """
    columns: dict[str, list[Any]] = {}
    for stream, source in names.streams.items():
        if isinstance(found := record.get(source.field), list):
            _check_column(found, size, list_id, source.field)
            columns[stream] = record.pop(source.field)
    for name in () if columns else (name for name in SCORE_NAMES if name in record and names.scores):
        found = record[name]
        named = found if isinstance(found, dict) else {STREAM: found}
        if named and all(  # arrays of arrays are scores of tokens
            isinstance(values, list) and any(type(value) in (int, float) for value in values)
            for values in named.values()
        ):
            for stream, values in named.items():
                _check_column(values, size, list_id, name if found is values else f'{name}["{stream}"]')
            del record[name]
            return dict(named)
    return columns


def _check_column(values: list[Any], size: int, list_id: str, field: str) -> None:
    """Raise InvalidList unless the number of scores is the number of hypotheses."""
    if len(values) != size:
        hypotheses = pluralise(size, "hypothesis", "hypotheses")
        message = f"{pluralise(len(values), 'score')} for {hypotheses}; expected one for each"
        raise InvalidList(message, list_id=list_id, field=field)


def _is_column(values: Any, size: int) -> TypeGuard[list[float]]:
    return isinstance(values, list) and len(values) == size and all(map(is_number, values))


def explain_missing_hypotheses(record: Mapping[str, Any], names: FieldMap = DEFAULT_NAMES) -> str:
    """Say which field of a record may hold the missing hypotheses, and which option reads that field."""
    if options := suggest_map(record, names):
        return f"missing; {options}"
    others = ", ".join([name for name in record if name != names.id][:MAX_NAMED]) or "none"
    if rows := suggest_table(record):
        rows = f"; {rows}"
    return (
        f"missing{rows}; if the field has another name, give --map hypotheses=FIELD (other fields: {others})"
    )


def suggest_table(record: Any) -> str:
    """Say which option reads a file whose records are single hypotheses; empty if a record is not one."""
    text = _find_texts(record, TEXT_NAMES) if isinstance(record, dict) else ""
    ids = [name for name in _find_id_names(record) if name != text] if text else []
    if not ids:
        return ""
    return f"if each line is one hypothesis, `--format table:id={ids[0]},text={text}` reads {text!r}"


def suggest_map(value: Any, names: FieldMap = DEFAULT_NAMES) -> str:
    """Say which ``--map`` option reads a record; empty if no field of it looks like hypotheses.

    Args:
        value: a record, or an array of records, of which the first is looked at.
        names: names of fields that are read without an option.
    """
    record = _first_record(value)
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
    """Say that a hypothesis has no text in the field ``name``, and which other field may hold the text."""
    message = f"expected a string, got {describe_type(item.get(name))}"
    likely = [key for key in TEXT_NAMES if key != name and isinstance(item.get(key), str)]
    return f"{message}; `--map text={likely[0]}` reads {likely[0]!r}" if likely else message


def explain_missing_id(record: Mapping[str, Any]) -> str:
    """Say which field of a record may hold its missing id; return "" if no field looks like an id."""
    likely = _find_id_names(record)
    return f"; `--map id={likely[0]}` reads {likely[0]!r}, `--map id=` numbers the lists" if likely else ""


def describe_items(items: list[Any]) -> str:
    """Describe an array of hypotheses, such as ``a list of 4 objects with text``."""
    kind, further = "text", ""
    if isinstance(items[0], dict):
        kind, further = "object", f" with {_find_texts(items[0], TEXT_NAMES) or 'text'}"
    elif isinstance(items[0], list):
        kind, further = "pair", " of text and score"
    return f"a list of {pluralise(len(items), kind)}{further}"


def _find_id_names(record: Mapping[str, Any]) -> list[str]:
    def is_name(value: Any) -> bool:
        return (isinstance(value, str) and bool(value)) or type(value) is int

    return [name for name, value in record.items() if ID_NAME.search(name) and is_name(value)]
