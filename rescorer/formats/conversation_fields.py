"""Read and write in JSON what a list says of its conversation: previous utterances and phrases.

An utterance is a text, or an object with ``text``, ``speaker`` and ``confidence``; a phrase is a text, or an
object with ``text``, ``weight``, ``spellings`` and ``slot``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rescorer.conversation import Generated, Phrase, Utterance
from rescorer.errors import InvalidList
from rescorer.formats.io.json_records import describe_type

Item = TypeVar("Item")
SOUND_DECIMALS = 2
"""Decimals of distances in sound, which are sums of hundredths."""


def parse_utterances(value: Any, field: str, list_id: str) -> tuple[Utterance, ...]:
    """Convert an array of previous utterances, oldest first; None is an empty array.

    Raises:
        InvalidList: the value has another type, or an object has another key.
    """

    def build(item: dict[str, Any], place: str) -> Utterance:
        speaker = item.get("speaker", "")
        _check(isinstance(speaker, str), "a string", speaker, f"{place}.speaker", list_id)
        confidence = _parse_number(item, "confidence", place, list_id)
        return Utterance(item["text"], speaker, confidence)

    return _parse_items(value, ("text", "speaker", "confidence"), build, field, list_id)


def parse_phrases(value: Any, field: str, list_id: str) -> tuple[Phrase, ...]:
    """Convert an array of phrases; None is an empty array.

    Raises:
        InvalidList: the value has another type, or an object has another key.
    """

    def build(item: dict[str, Any], place: str) -> Phrase:
        spellings = item.get("spellings", [])
        are_texts = isinstance(spellings, list) and all(isinstance(text, str) for text in spellings)
        _check(are_texts, "an array of texts", spellings, f"{place}.spellings", list_id)
        weight = _parse_number(item, "weight", place, list_id)
        slot = item.get("slot", "")
        _check(isinstance(slot, str), "a string", slot, f"{place}.slot", list_id)
        return Phrase(item["text"], weight, tuple(spellings), slot)

    return _parse_items(value, ("text", "weight", "spellings", "slot"), build, field, list_id)


def _parse_items(
    value: Any,
    keys: tuple[str, ...],
    build: Callable[[dict[str, Any], str], Item],
    field: str,
    list_id: str,
) -> tuple[Item, ...]:
    """Convert an array of texts or objects.

    Args:
        keys: the keys that an object may have; ``text`` must be there.
        build: converts an object that has a text; its second argument names the object in messages.
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
        _check(isinstance(item.get("text"), str), "a string", item.get("text"), f"{place}.text", list_id)
        found.append(build(item, place))
    return tuple(found)


def _parse_number(item: dict[str, Any], key: str, place: str, list_id: str) -> float:
    """The number under a key of an object; 1 if it is not there."""
    number = item.get(key, 1.0)
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    _check(is_number, "a number", number, f"{place}.{key}", list_id)
    try:
        return float(number)
    except OverflowError:  # an integer of more than 308 digits, which is out of range
        return math.inf


def _check(is_right: bool, expected: str, value: Any, field: str, list_id: str) -> None:
    if not is_right:
        message = f"expected {expected}, got {describe_type(value)}"
        raise InvalidList(message, list_id=list_id, field=field)


def utterance_records(utterances: Sequence[Utterance]) -> list[str | dict[str, Any]]:
    """Return what ``parse_utterances`` reads back."""

    def record(utterance: Utterance) -> str | dict[str, Any]:
        fields: dict[str, Any] = {"speaker": utterance.speaker} if utterance.speaker else {}
        fields |= {"confidence": utterance.confidence} if utterance.confidence != 1 else {}
        return {"text": utterance.text, **fields} if fields else utterance.text

    return [record(utterance) for utterance in utterances]


def phrase_records(phrases: Sequence[Phrase]) -> list[str | dict[str, Any]]:
    """Return what ``parse_phrases`` reads back."""

    def record(phrase: Phrase) -> str | dict[str, Any]:
        if phrase == Phrase(phrase.text):
            return phrase.text
        fields = {"text": phrase.text, "weight": phrase.weight, "spellings": list(phrase.spellings)}
        return {**fields, "slot": phrase.slot} if phrase.slot else fields

    return [record(phrase) for phrase in phrases]


def generated_record(made: Generated) -> dict[str, Any]:
    """Describe how a hypothesis was made; ranks and words count from 1."""
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
