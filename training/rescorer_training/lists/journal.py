"""Keep the results of a long run in a file while it lasts, so that a run that was killed can go on.

A journal has one JSON record per line: first the settings of the run, then one finished task per line. A line
that was cut off, because the process was killed while writing it, is removed.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, shorten


class Journal:
    """Finished tasks by key, open for more; a context manager that lets no second run use the same file."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open a journal, or start one.

        Raises:
            ConfigError: the journal belongs to a run with other settings, or another process has it open.
        """
        self._path = path
        self._stream = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed in __exit__)
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._stream.close()
            raise ConfigError(f"{path}: another process is writing it; wait until it has ended") from None
        header, *records = self._read_records() or [None]
        if header is None:
            self._write({"settings": dict(settings)})
        elif header != {"settings": json.loads(json.dumps(dict(settings)))}:
            self._stream.close()
            raise ConfigError(
                f"{path}: an unfinished run has other settings "
                f"({describe_differences(header.get('settings', {}), settings)}); start again with those, or "
                f"delete the folder {path.parent}, or choose another output"
            )
        self.finished: dict[str, Any] = {record["key"]: record["value"] for record in records}

    def _read_records(self) -> list[Any]:
        self._stream.seek(0)
        content = self._stream.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._stream.truncate(len(complete))
        return [json.loads(line) for line in complete.splitlines()]

    def _write(self, record: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(record).encode() + b"\n")

    def add(self, key: str, value: Any) -> None:
        """Record a finished task and its result, which can be written as JSON."""
        self._write({"key": key, "value": value})
        self.finished[key] = value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Name the settings that differ, with both values.

    >>> describe_differences({"seed": 1, "depth": 100}, {"seed": 1, "depth": 50})
    'depth 100, now 50'
    """

    def spell(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    def show(value: Any) -> str:
        return shorten(spell(value), MAX_QUOTED_CHARS)

    names = [name for name in dict.fromkeys([*old, *new]) if spell(old.get(name)) != spell(new.get(name))]
    return "; ".join(f"{name} {show(old.get(name))}, now {show(new.get(name))}" for name in names)
