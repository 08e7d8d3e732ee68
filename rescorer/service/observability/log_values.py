"""Bound the values of log events, which may quote requests, and escape what could forge lines or control a
terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rescorer.errors import shorten

TEXTS_EVENT = "texts"
"""Event whose values are the texts of a request; the setting ``log_texts`` asks for it."""
MAX_VALUE_CHARS = 500
"""Longest text in a log line."""
MAX_CONTAINER_CHARS = 4_000
"""Longest list or mapping in a log line, in characters of its texts."""
MAX_TRACEBACK_CHARS = 16_000
MAX_TEXTS_CHARS = 250_000
"""Longest texts of a request in a log line. A line must fit into the pipe in front of stderr."""
ITEM_CHARS = 8
"""What a number or another short item counts."""
SCALARS = (int, float, type(None))
"""Types whose values are short and have nothing to escape."""
TRACEBACKS = ("exception", "stack")
"""Keys of tracebacks in an event."""

CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON leaves as they are although they control terminals or the direction of text."""
ALL_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

Event = dict[str, Any]


def bound_values(logger: Any, method: str, event: Event) -> Event:
    """Structlog processor that cuts the values of an event, whatever their origin."""
    if event.get("event") == TEXTS_EVENT:
        limits = MAX_TEXTS_CHARS, MAX_TEXTS_CHARS
    else:
        limits = MAX_VALUE_CHARS, MAX_CONTAINER_CHARS
    return {key: _bound(key, value, *limits) for key, value in event.items()}


def escape_lines(logger: Any, method: str, event: Event) -> Event:
    """Structlog processor for readable lines: keep the event on one line, and indent the traceback, so that
    no text can look like another line. The renderer quotes the other values."""
    escaped = {**event, "event": _escape(ALL_CONTROLS, str(event.get("event", "")))}
    for key in TRACEBACKS:
        if key in event:
            lines = str(event[key]).split("\n")
            escaped[key] = "\n".join(f"    {_escape(ALL_CONTROLS, line)}" for line in lines)
    return escaped


def _bound(key: str, value: Any, max_chars: int, max_sum: int) -> Any:
    if key in TRACEBACKS:
        return _bound_traceback(value)
    if isinstance(value, str):
        return _escape(CONTROLS, shorten(value, max_chars))
    return value if isinstance(value, SCALARS) else _Copier(max_chars, max_sum).copy(value)


class _Copier:
    """Copies a value with short texts, until the sum of their lengths reaches a limit.

    Args:
        max_chars: longest text.
        max_sum: longest sum of all texts.
    """

    def __init__(self, max_chars: int, max_sum: int) -> None:
        self._max_chars, self._remaining = max_chars, max_sum

    def copy(self, value: Any) -> Any:
        if isinstance(value, str):
            text = shorten(value, max(1, min(self._max_chars, self._remaining)))
            self._remaining -= len(text) + ITEM_CHARS
            return _escape(CONTROLS, text)
        if isinstance(value, SCALARS):
            self._remaining -= ITEM_CHARS
            return value
        if isinstance(value, Mapping):
            return self._copy_mapping(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._copy_items(value)
        return self.copy(repr(value))

    def _copy_mapping(self, mapping: Mapping[Any, Any]) -> Event:
        copied: Event = {}
        for key, value in mapping.items():
            if self._remaining <= 0:
                copied["…"] = f"{len(mapping) - len(copied)} more"
                break
            copied[self.copy(str(key))] = self.copy(value)
        return copied

    def _copy_items(self, items: Any) -> list[Any]:
        copied: list[Any] = []
        for item in items:
            if self._remaining <= 0:
                copied.append(f"… {len(items) - len(copied)} more")
                break
            copied.append(self.copy(item))
        return copied


def _bound_traceback(value: Any) -> str:
    """Cut the middle of a traceback: its end says what failed, its beginning where."""
    text = str(value)
    if len(text) > MAX_TRACEBACK_CHARS:
        half = MAX_TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return _escape(CONTROLS, text)


def _escape(pattern: re.Pattern[str], text: str) -> str:
    if text.isprintable():  # the usual case, decided quickly: no control character is printable
        return text
    return pattern.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
