"""Put a phrase in place of a span of words, and keep what is known of the words: case, punctuation, times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rescorer.conversation import Generated
from rescorer.decision.word_spans import WORDS_FIELD, is_time

TOKEN = re.compile(r"\S+")
WORD_CHARACTER = re.compile(r"\w")
TIME_DECIMALS = 6


def replace_spans(text: str, fields: Mapping[str, Any], made: Generated) -> tuple[str, Mapping[str, Any]]:
    """Return text and fields of a generated hypothesis, from those of its source."""
    for part in reversed(made.parts):  # the last one first: words before it keep their indices
        replaced = replace_words(text, part.start, part.end, part.phrase)
        text, fields = replaced, replace_fields(fields, text, replaced, part)
    return text, fields


def replace_words(text: str, start: int, end: int, phrase: str) -> str:
    """Replace words of a text by a phrase.

    White space and all other words stay as they are. Punctuation before and after the span stays. The phrase
    is written in capitals in a text without small letters, and with a first capital at the beginning of a
    text that begins with one.

    Args:
        start, end: indices of the first word and after the last one, separated by white space.
    """
    spans = find_tokens(text)
    return put(text, spans, start, end, fit_phrase(text, spans, start, end, phrase))


def find_tokens(text: str) -> list[tuple[int, int]]:
    """Return where each word of a text, separated by white space, begins and ends."""
    return [token.span() for token in TOKEN.finditer(text)]


def put(text: str, spans: Sequence[tuple[int, int]], start: int, end: int, middle: str) -> str:
    """Put other text in place of words; arguments are those of ``fit_phrase``."""
    return f"{text[: spans[start][0]]}{middle}{text[spans[end - 1][1] :]}"


def fit_phrase(text: str, spans: Sequence[tuple[int, int]], start: int, end: int, phrase: str) -> str:
    """Return a phrase as it is written in place of words of a text; see ``replace_words``.

    Args:
        spans: where the words of the text begin and end; of those after ``end`` nothing is read.
    """
    first, last = (text[slice(*spans[place])] for place in (start, end - 1))
    before, after = first[: _before_word(first)], last[_after_word(last) :]
    inner = " ".join(phrase.split())
    if text.isupper():
        inner = inner.upper()
    elif start == 0 and first[len(before) : len(before) + 1].isupper():
        inner = inner[:1].upper() + inner[1:]
    if before and inner.startswith(before):
        before = ""
    if after and inner.endswith(after):
        after = ""
    return f"{before}{inner}{after}"


def _before_word(token: str) -> int:
    """Number of characters before the first letter or digit; all if there is none."""
    found = WORD_CHARACTER.search(token)
    return found.start() if found else len(token)


def _after_word(token: str) -> int:
    """Index after the last letter or digit; that of the end if there is none."""
    found = WORD_CHARACTER.search(token[::-1])
    return len(token) - found.start() if found else len(token)


def replace_fields(fields: Mapping[str, Any], source: str, text: str, made: Generated) -> Mapping[str, Any]:
    """Return the fields of a generated hypothesis: those of its source, with ``words`` for the new text.

    The new words share the time from the start of the span to its end, in proportion to their letters. If the
    words of the field are not those of the source's text, or have no times, the new hypothesis has no such
    field.

    Args:
        fields: of the source, plain data or a protobuf ``Struct``.
        source, text: texts of the source and of the new hypothesis.
    """
    if WORDS_FIELD not in fields:
        return fields
    others = {name: fields[name] for name in fields if name != WORDS_FIELD}
    words, new_words = source.split(), text.split()
    if not _are_entries(fields[WORDS_FIELD], words):
        return others
    entries = [*fields[WORDS_FIELD]]  # a protobuf ListValue cannot be cut
    times = _find_times(entries[made.start : made.end])
    if times is None:
        return others
    n_after = len(words) - made.end
    new = _share_time(new_words[made.start : len(new_words) - n_after], *times)
    return {**others, WORDS_FIELD: [*entries[: made.start], *new, *entries[made.end :]]}


def _are_entries(entries: Any, words: Sequence[str]) -> bool:
    if not isinstance(entries, Sequence) or isinstance(entries, str) or len(entries) != len(words):
        return False
    return all(
        isinstance(entry, Mapping) and "word" in entry and entry["word"] == word
        for entry, word in zip(entries, words, strict=True)
    )


def _find_times(entries: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The start of the first word and the end of the last one in seconds, if all of them have times."""
    if not all("start_s" in entry and "duration_s" in entry for entry in entries):
        return None
    if not all(is_time(entry["start_s"]) and is_time(entry["duration_s"]) for entry in entries):
        return None
    start_s, end_s = entries[0]["start_s"], entries[-1]["start_s"] + entries[-1]["duration_s"]
    return (start_s, end_s) if is_time(end_s) and start_s <= end_s else None


def _share_time(words: Sequence[str], start_s: float, end_s: float) -> list[dict[str, Any]]:
    per_letter_s = (end_s - start_s) / max(1, sum(map(len, words)))
    entries: list[dict[str, Any]] = []
    for word in words:
        duration_s = len(word) * per_letter_s
        entries.append(
            {
                "word": word,
                "start_s": round(start_s, TIME_DECIMALS),
                "duration_s": round(duration_s, TIME_DECIMALS),
            }
        )
        start_s += duration_s
    return entries
