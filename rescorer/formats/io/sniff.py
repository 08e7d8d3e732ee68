"""Read the beginning of a file or folder, so that its format can be detected."""

from __future__ import annotations

import json
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
MAGIC_BYTES = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a file or folder."""

    path: Path
    names: tuple[str, ...]
    """Sorted names of a folder's entries, without ``.gz``; empty for a file."""
    lines: tuple[str, ...]
    """The first lines of the file, or of the folder's first file; blank and invalid lines are skipped."""
    magic: bytes = b""
    """The first bytes of the file, or of the folder's first file."""

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


def read_sample(path: str | Path) -> Sample:
    """Read the first lines of a file or object; or the names in a folder or below a prefix, and the first
    lines of its first file.

    Raises:
        FormatError: If the file cannot be opened.
    """
    names, first = _find_entries(path)
    magic = _read_magic(first) if first else b""
    is_text = first and not is_parquet(magic)
    lines = islice(read_lines(first), SAMPLE_LINES) if first and is_text else ()
    texts = tuple(text for _, text in lines if isinstance(text, str) and text.strip())
    return Sample(Path(path), names, texts, magic)


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
