"""Parse small JSON files whose size, depth and numbers are bounded."""

from __future__ import annotations

import json
from typing import Any

from rescorer.errors import BundleError

MAX_JSON_BYTES = 4 << 20
"""Largest JSON file. Python needs at most about 30 times as much memory for its values."""
MAX_JSON_DEPTH = 32
MAX_DIGITS = 18
"""Largest number of digits of an integer: it fits into 64 bits."""


def parse_json(data: bytes, place: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        place: where the text comes from, for messages.

    Raises:
        BundleError: the text is not a JSON object, is nested too deeply, or has an integer of too many digits
            or a string that is not Unicode text.
    """
    try:
        values = json.loads(data.decode("utf-8"), parse_int=_parse_int)
    except UnicodeDecodeError as error:
        raise BundleError(f"{place}: cannot be read as JSON: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BundleError(f"{place}: cannot be read as JSON: {error}") from None
    except OverflowError as error:
        raise BundleError(f"{place}: {error}") from None
    except RecursionError:
        raise BundleError(_too_deep(place)) from None
    if not isinstance(values, dict):
        raise BundleError(f"{place}: expected a JSON object")
    _check_values(values, place)
    return values


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise OverflowError(f"an integer has {len(digits):,} digits; expected at most {MAX_DIGITS}")
    return int(digits)


def _check_values(values: Any, place: str) -> None:
    """Check depth and strings, level by level."""
    level = [values]
    for _ in range(MAX_JSON_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str) and not _is_unicode(value):
                raise BundleError(f"{place}: a string has half of a surrogate pair; expected Unicode text")
        level = inner
        if not level:
            return
    raise BundleError(_too_deep(place))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_deep(place: str) -> str:
    return f"{place}: values are nested too deeply; expected at most {MAX_JSON_DEPTH} levels"
