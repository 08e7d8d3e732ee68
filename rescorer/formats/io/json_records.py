"""Parse lines of text as JSON objects, and describe JSON values in error messages."""

from __future__ import annotations

import json
import re
from typing import Any

from rescorer.errors import FormatError

SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_object(text: str, file: str, line: int) -> dict[str, Any]:
    """Parse a line that holds one JSON object.

    Raises:
        FormatError: If the line is not a JSON object, or contains an unpaired surrogate, which cannot be
            encoded in UTF-8.
    """
    record = parse_value(text, file, line)
    if not isinstance(record, dict):
        advice = "; `jq -c '.[]'` writes the objects of an array on a line each" if record else ""
        message = f"expected a JSON object, got {describe_type(record)}"
        message += advice if isinstance(record, list) else ""
        raise FormatError(message, file=file, line=line)
    return record


def parse_value(text: str, file: str, line: int) -> Any:
    """Parse a line that holds one JSON value.

    Raises:
        FormatError: If the line is not JSON, or contains an unpaired surrogate.
    """
    try:
        value = json.loads(text)
        if SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error.msg} at column {error.colno}", file=file, line=line) from None
    except UnicodeEncodeError:
        raise FormatError("unpaired surrogate; expected Unicode text", file=file, line=line) from None
    except (ValueError, RecursionError) as error:  # thousands of digits or of nested brackets
        raise FormatError(f"cannot parse JSON: {error}", file=file, line=line) from None
    return value


def describe_type(value: Any) -> str:
    """Return the JSON type of a value with its article, for error messages, such as "an empty array"."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in ((str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return f"a{'n' if name[0] in 'ao' else ''} {name}" if value else f"an empty {name}"
    return "a number"
