"""The hypothesis field ``words``, which holds the start and duration of each word in every format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rescorer.errors import InvalidList
from rescorer.formats.common import LINE_BREAK, split_words
from rescorer.types import MAX_NUMBER, NBestList

WORDS_FIELD = "words"
"""Field with one object per word: ``word``, ``start_s``, ``duration_s``, optional ``confidence``."""
TIME_KEYS = ("start_s", "duration_s")
NUMBER_KEYS = (*TIME_KEYS, "confidence")
TIME_DECIMALS = 6
"""Decimals of durations that are computed as differences of times."""


def get_word_times(nbest: NBestList, index: int = 0) -> list[dict[str, Any]]:
    """Return the objects in the ``words`` field of hypothesis ``index``, after checking them.

    Raises:
        InvalidList: If the hypothesis has words but no such field, or the field is not a list of words
            with times.
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
    return times


def build_word_times(words: Sequence[str], spans: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Build the value of the ``words`` field from words and their (start, end) times in seconds."""
    return [
        {"word": word, "start_s": start, "duration_s": round(end - start, TIME_DECIMALS)}
        for word, (start, end) in zip(words, spans, strict=True)
    ]


def is_finite_number(value: object) -> bool:
    """Return whether ``value`` is a finite int or float; booleans are not numbers."""
    return type(value) in (int, float) and -MAX_NUMBER <= value <= MAX_NUMBER  # type: ignore[operator]
