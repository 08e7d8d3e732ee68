"""Owns the look at the beginning of a file or folder from which a format is told."""

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
    """What can be seen without reading the whole."""

    path: Path
    names: tuple[str, ...]
    """What a folder holds, ``.gz`` taken off, in order; empty for a file."""
    lines: tuple[str, ...]
    """The first lines that are text and not blank, of the file or of the folder's first file."""

    @property
    def is_folder(self) -> bool:
        return bool(self.names)

    @property
    def first(self) -> str:
        return self.lines[0].strip() if self.lines else ""

    @property
    def text(self) -> str:
        """The lines in one, for documents."""
        return "\n".join(self.lines)

    @property
    def record(self) -> dict[str, Any]:
        """The first line as a JSON object; empty where it is none by itself."""
        try:
            value = json.loads(self.first)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


def read_sample(path: Path) -> Sample:
    """Looks at a file, or at the names in a folder and its first file.

    Raises:
        FormatError: it cannot be opened.
    """
    names: tuple[str, ...] = ()
    first: Path | None = path
    if path.is_dir():
        inside = sorted(each for each in path.iterdir() if not each.name.startswith("."))
        names = tuple(each.name.removesuffix(".gz") for each in inside)
        first = next((each for each in inside if each.is_file()), None)
    lines = islice(read_lines(first), SAMPLE_LINES) if first else ()
    return Sample(path, names, tuple(text for _, text in lines if isinstance(text, str) and text.strip()))
