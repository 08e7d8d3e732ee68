"""Times of canonical words, from the times that the recogniser gives for the words of its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rescorer.trie import Words
from rescorer.types import MAX_NUMBER

Span = tuple[float, float]
"""Start and end of a word in seconds."""
WORDS_FIELD = "words"
"""Field of a hypothesis with one object per word: ``word``, ``start_s``, ``duration_s``."""


def find_spans(
    fields: Mapping[str, Any], words: Words, normalise: Callable[[str], Words]
) -> tuple[Span, ...] | None:
    """Return the start and end of each canonical word of a hypothesis, or None if they are not known.

    The time of a token that is normalised to several words, such as ``we_did``, is divided equally among
    them; that of a token without words, such as ``<sil>``, is ignored.

    Args:
        fields: the client's fields of the hypothesis, plain data or a protobuf ``Struct``.
        words: canonical words of the hypothesis, which those of the field must equal.
    """
    if WORDS_FIELD not in fields:
        return None
    entries = fields[WORDS_FIELD]
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return None
    spans: list[Span] = []
    spoken: list[str] = []
    for entry in entries:
        if not (
            isinstance(entry, Mapping) and all(key in entry for key in ("word", "start_s", "duration_s"))
        ):
            return None
        token, start_s, duration_s = entry["word"], entry["start_s"], entry["duration_s"]
        if not (isinstance(token, str) and is_time(start_s) and is_time(duration_s)):
            return None
        if not is_time(start_s + duration_s):  # too large for a number
            return None
        parts = normalise(token)
        share_s = duration_s / max(len(parts), 1)
        spoken.extend(parts)
        spans.extend((start_s + i * share_s, start_s + (i + 1) * share_s) for i in range(len(parts)))
    return tuple(spans) if tuple(spoken) == words else None


def is_time(value: object) -> bool:
    """Whether a value is a finite number of seconds, not negative; booleans are not numbers."""
    return type(value) in (int, float) and 0 <= value <= MAX_NUMBER  # type: ignore[operator]
