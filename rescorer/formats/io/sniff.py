"""Read the beginning of a file or folder, so that its format can be detected."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rescorer.formats.io.text_io import read_lines

SAMPLE_LINES = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a file or folder."""

    path: Path
    names: tuple[str, ...]
    """Sorted names of a folder's entries, without ``.gz``; empty for a file."""
    lines: tuple[str, ...]
    """The first lines of the file, or of the folder's first file; blank and invalid lines are skipped."""

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


def read_sample(path: Path) -> Sample:
    """Read the first lines of a file; or the names in a folder, and the first lines of its first file.

    Raises:
        FormatError: If the file cannot be opened.
    """
    names: tuple[str, ...] = ()
    first: Path | None = path
    if path.is_dir():
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        names = tuple(entry.name.removesuffix(".gz") for entry in entries)
        first = next((entry for entry in entries if entry.is_file()), None)
    lines = islice(read_lines(first), SAMPLE_LINES) if first else ()
    return Sample(path, names, tuple(text for _, text in lines if isinstance(text, str) and text.strip()))
