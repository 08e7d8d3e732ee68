"""Read files of phrases: one phrase per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rescorer.conversation import Phrase
from rescorer.errors import BundleError, ConfigError, FormatError, InvalidList
from rescorer.formats.conversation_fields import parse_phrases
from rescorer.safe_input.files import Folder

MAX_PHRASE_FILE_BYTES = 4 << 20
"""Largest file of phrases."""


def read_phrase_file(path: Path) -> tuple[Phrase, ...]:
    """Read a file that the user named.

    Raises:
        ConfigError: it cannot be read, or is too large.
        FormatError: a line is not a phrase; see ``parse_phrase_file``.
    """
    try:
        data = Folder(path.parent).read_bytes(path.name, MAX_PHRASE_FILE_BYTES)
    except BundleError as error:
        raise ConfigError(str(error)) from None
    return parse_phrase_file(data, str(path))


def parse_phrase_file(data: bytes, file: str) -> tuple[Phrase, ...]:
    """Convert the lines of a file: a phrase each, or a JSON object with text, weight, spellings and slot.

    Empty lines and those that begin with ``#`` are ignored.

    Args:
        file: name of the file, for messages.

    Raises:
        FormatError: a line is not UTF-8, not a JSON object although it begins with a brace, or has another
            key or type.
    """
    return tuple(phrase for line, item in _read_items(data, file) for phrase in _parse(item, file, line))


def _read_items(data: bytes, file: str) -> Iterator[tuple[int, Any]]:
    """Number and content of each line that is not a comment."""
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8").strip()
            if line and not line.startswith("#"):
                yield number, json.loads(line) if line.startswith("{") else line
        except UnicodeDecodeError as error:
            raise FormatError(f"not UTF-8 at byte {error.start}", file=file, line=number) from None
        except (ValueError, RecursionError) as error:
            message = f"cannot be read as JSON: {error}; a line that begins with {{ is an object"
            raise FormatError(message, file=file, line=number) from None


def _parse(item: Any, file: str, line: int) -> tuple[Phrase, ...]:
    try:
        return parse_phrases([item], "phrase", "")
    except InvalidList as error:
        field = error.field.removeprefix("phrase[0]").removeprefix(".")
        raise FormatError(error.message, file=file, line=line, field=field) from None
