"""Owns the step from a line of text to a JSON object, and what is said of values that are something else."""

from __future__ import annotations

import json
import re
from typing import Any

from rescorer.errors import FormatError

SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_object(text: str, file: str, line: int) -> dict[str, Any]:
    """The JSON object of one line.

    Raises:
        FormatError: the line is no JSON object, or holds half a surrogate pair, which no UTF-8 can carry.
    """
    try:
        record = json.loads(text)
        if SURROGATE_ESCAPE.search(text):
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as fault:
        raise FormatError(f"not JSON: {fault.msg} at column {fault.colno}", file=file, line=line) from None
    except UnicodeEncodeError:
        raise FormatError("half a surrogate pair; expected Unicode text", file=file, line=line) from None
    except (ValueError, RecursionError) as fault:  # thousands of digits or of brackets
        raise FormatError(f"not readable JSON: {fault}", file=file, line=line) from None
    if not isinstance(record, dict):
        raise FormatError(f"expected a JSON object, not {describe_type(record)}", file=file, line=line)
    return record


def describe_type(value: Any) -> str:
    """What to call a value in an error: its JSON type, or that it is empty."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in ((str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return f"a{'n' if name[0] in 'ao' else ''} {name}" if value else f"an empty {name}"
    return "a number"
