"""The file that collects rejected lists."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Self, TextIO

from rescorer.formats.io.targets import explain_write_errors, is_stream, open_stream, remove_file


class RejectsFile:
    """A context manager that writes rejected lists to a file, or to stderr without a path.

    The file is created when the first list is rejected. If none is, a file left by an earlier run is removed,
    so that nobody mistakes it for the rejects of this run.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stream: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
        elif self._path is not None and kind is None:
            remove_file(self._path)

    def write(self, text: str) -> None:
        if self._path is None:
            sys.stderr.write(text)
            return
        if self._stream is None:
            with explain_write_errors(self._path):
                stream = open_stream(self._path) if is_stream(self._path) else open(self._path, "wb")  # noqa: SIM115
            self._stream = TextIOWrapper(stream, "utf-8", newline="\n")
        self._stream.write(text)
