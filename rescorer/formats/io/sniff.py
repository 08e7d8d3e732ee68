"""Read the beginning of a file or folder, so that its format can be detected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError
from rescorer.formats.io.chunks import is_parquet
from rescorer.formats.io.text_io import open_named, read_lines
from rescorer.storage.objects import find_objects, is_object
from rescorer.storage.urls import base_name, is_url

SAMPLE_LINES = 50
SAMPLE_CHARACTERS = 1 << 16
"""Number of characters after which no more lines are read of JSON, whose lines may be short."""
MAX_LINES = 10_000
"""Lines that are read at most, of JSON or with comments before ``SAMPLE_LINES`` others."""
COMMENT = ";;"
"""How comments of NIST's formats begin; whole licences can stand before the first line that is none."""
MAX_CHARACTERS = 1 << 20
"""Number of characters of which JSON documents are parsed."""
MAX_DOCUMENTS = 50
ID_AT_END = re.compile(r"\([^()]*[\d._-][^()]*\)$")
MAGIC_BYTES = 5
DOCUMENT_START = re.compile(r"(?:\A|(?<=\n))[ \t]*[\[{]|(?<=[\]}])\s*[\[{]")
"""Matches the start of a document, at the start of a line or after another document."""
TOKEN = re.compile(r'[\[\]{},]|"(?:[^"\\]|\\.)*"', re.DOTALL)
"""Matches brackets, commas and complete strings of JSON."""
DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a file or folder."""

    path: Path
    names: tuple[str, ...]
    """Sorted names of a folder's entries, without ``.gz``; empty for a file."""
    lines: tuple[str, ...]
    """The first lines of the file, or of the folder's first file, and comments before and between them; blank
    and invalid lines are skipped."""
    magic: bytes = b""
    """The first bytes of the file, or of the folder's first file."""
    documents: tuple[Any, ...] = ()
    """Values of the JSON documents in the lines; the last may be incomplete, where the lines end."""

    @property
    def is_folder(self) -> bool:
        """Whether the path is a folder with at least one entry."""
        return bool(self.names)

    @property
    def first(self) -> str:
        """The first line, stripped, or an empty string."""
        return self.lines[0].strip() if self.lines else ""

    @property
    def text(self) -> str:
        """All lines in one string, to detect documents."""
        return "\n".join(self.lines)

    @property
    def record(self) -> dict[str, Any]:
        """The first line as a JSON object; empty if it is not one."""
        try:
            value = json.loads(self.first)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


def ends_with_id(line: str) -> bool:
    """Whether a line ends with an id of a trn, ``(u1)``; with letters alone it may be an optional word."""
    return ID_AT_END.search(line.rstrip()) is not None


def read_sample(path: str | Path) -> Sample:
    """Read the first lines of a file or object; or the names in a folder or below a prefix, and the first
    lines of its first file.

    Raises:
        FormatError: If the file cannot be opened.
    """
    names, first = _find_entries(path)
    magic = _read_magic(first) if first else b""
    is_text = first and not is_parquet(magic)
    texts = tuple(_read_texts(first)) if first and is_text else ()
    return Sample(Path(path), names, texts, magic, tuple(parse_beginnings("\n".join(texts)[:MAX_CHARACTERS])))


def _read_texts(path: str | Path) -> Iterator[str]:
    """Yield the first lines that are neither blank nor invalid; more of them if they are JSON or comments."""
    n_left, n_characters, is_json = SAMPLE_LINES, 0, False
    for _, text in islice(read_lines(path), MAX_LINES):
        if isinstance(text, str) and text.strip():
            is_json = is_json or (not n_characters and text.lstrip().startswith(("{", "[")))
            n_characters += len(text) + 1
            yield text
            n_left += text.startswith(COMMENT)
        n_left -= 1
        if n_left <= 0 and not (is_json and n_characters < SAMPLE_CHARACTERS):
            return


def parse_beginnings(text: str) -> Iterator[Any]:
    """Yield the first JSON documents of a text that may end anywhere, also within a document.

    What is no JSON is skipped up to the next line that starts with a bracket.

    >>> list(parse_beginnings('{"a": 1} [2, {"b": [3, "c'))
    [{'a': 1}, [2, {'b': [3]}]]
    """
    at = 0
    for _ in range(MAX_DOCUMENTS):
        match = DOCUMENT_START.search(text, at)
        if not match:
            return
        at = match.end() - 1
        try:
            value, at = DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            is_cut = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated")
            if not is_cut:
                at = text.find("\n", error.pos) + 1 or len(text)
                continue
            value, at = _complete(text[at:]), len(text)
        except (ValueError, RecursionError):
            return
        yield value


def _complete(text: str) -> Any:
    """Parse a JSON document that ends too early, without what is incomplete in it."""
    closers: list[str] = []
    end, missing = 0, ""
    for token in TOKEN.finditer(text):
        kind = token[0][0]
        if kind in "[{":
            closers.append("]" if kind == "[" else "}")
        elif kind in "]}":
            if not closers:
                break
            closers.pop()
        elif kind != ",":
            continue
        end, missing = token.start() if kind == "," else token.end(), "".join(reversed(closers))
    try:
        return json.loads(text[:end] + missing)
    except (ValueError, RecursionError):
        return None


def _find_entries(path: str | Path) -> tuple[tuple[str, ...], str | Path | None]:
    """The names in a folder or below a prefix, and its first file; no names, and the path, for a file."""
    if is_url(path):
        if is_object(str(path)):
            return (), path
        try:
            found = find_objects(str(path))
        except FileNotFoundError as error:
            raise FormatError(f"cannot be read: {error.strerror}", file=str(path)) from None
        return tuple(base_name(name).removesuffix(".gz") for name in found), found[0]
    if not Path(path).is_dir():
        return (), path
    entries = sorted(entry for entry in Path(path).iterdir() if not entry.name.startswith("."))
    names = tuple(entry.name.removesuffix(".gz") for entry in entries)
    return names, next((entry for entry in entries if entry.is_file()), None)


def _read_magic(path: str | Path) -> bytes:
    try:
        with open_named(path) as stream:
            return stream.read(MAGIC_BYTES)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
