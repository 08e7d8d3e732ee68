"""Find input files and objects, and read parts of them by byte ranges, hashed while they are read."""

from __future__ import annotations

import glob
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats.io.chunks import GZIP_MAGIC
from rescorer.formats.io.text_io import max_line_bytes, open_named
from rescorer.formats.parts import Parts
from rescorer.formats.tables.parquet import find_tables
from rescorer.shards.planning.plan import InputFile, Part
from rescorer.storage.objects import find_objects, measure_objects
from rescorer.storage.urls import is_url
from rescorer.types import NBestList

LINE_FORMAT = "jsonl"
"""The format with one list per line, which can be divided at any line."""
TABLE_FORMAT = "parquet"
"""The format of tables, whose folders hold one table per file."""
BLOCK_BYTES = 1 << 20
MAX_NAMES = 1_000_000
"""Largest number of input files."""

Lists = Iterator[NBestList | InputError]


@dataclass(frozen=True, slots=True)
class ListSource:
    """How lists are read. Its functions can be pickled, for other processes.

    Args:
        find_parts: the files and folders that an input consists of, and their format.
        find_header: the header line of a file of JSON lines, or an empty string.
        read_file: reads all lists of a file or folder.
        read_lines: reads the lists of some lines of a file, given a stream, the number of its first line and
            the header of the file.
    """

    find_parts: Callable[[str], Parts]
    find_header: Callable[[str], str]
    read_file: Callable[[str], Lists]
    read_lines: Callable[[BinaryIO, int, str], Lists]
    may_divide: bool = True
    """Whether files may be divided at all: not if lists depend on earlier ones."""

    def find_format(self, name: str) -> str:
        """The name of the format of a file or folder."""
        return self.find_parts(name).choice


def find_files(sources: Iterable[str], source: ListSource) -> list[str]:
    """Resolve globs and folders into names of files, in order; a folder that is one list file stays.

    Raises:
        ConfigError: an input is a pipe, occurs twice, or there are too many.
        InputError: nothing matches an input.
    """
    names: list[str] = []
    for given in sources:
        if given == "-":
            raise ConfigError("a pipe cannot be divided into shards; write it to a file first")
        names += _expand(given, source)
        if len(names) > MAX_NAMES:
            raise ConfigError(f"more than {MAX_NAMES:,} input files; join them, or give fewer at a time")
    if twice := next((name for name, n in _count(names).items() if n > 1), None):
        raise ConfigError(f"{twice}: this input is given twice")
    return names


def _count(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _expand(given: str, source: ListSource) -> list[str]:
    if is_url(given):
        try:
            return find_objects(given)
        except FileNotFoundError as error:
            raise FormatError(f"cannot be read: {error.strerror}", file=given) from None
    path = Path(given)
    if not path.exists():
        found = sorted(glob.glob(given, recursive=True)) if glob.has_magic(given) else []
        if not found:
            raise FormatError("cannot be read: No such file or directory", file=given)
        return [name for match in found for name in _expand(match, source)]
    if not path.is_dir():
        if not path.is_file():
            raise ConfigError(f"{given}: cannot be divided into shards, because it is no regular file")
        return [given]
    parts = source.find_parts(given)
    return find_tables(given) if parts.choice == TABLE_FORMAT else list(parts.paths)


def measure(name: str) -> int:
    """The number of bytes of a file or object, or of all files below a folder; raises FormatError."""
    if is_url(name):
        return measure_objects([name])[0]
    try:
        paths = _list_folder(name) if Path(name).is_dir() else [Path(name)]
        return sum(map(os.path.getsize, paths))
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=name) from None


def measure_all(names: Sequence[str]) -> list[int]:
    """What ``measure`` says of each name, in a time that the number of objects hardly changes."""
    urls = [name for name in names if is_url(name)]
    sizes = dict(zip(urls, measure_objects(urls), strict=True))
    return [sizes[name] if name in sizes else measure(name) for name in names]


def _list_folder(name: str) -> list[Path]:
    return sorted(path for path in Path(name).rglob("*") if path.is_file())


def is_compressed(name: str) -> bool:
    """Whether a file is gzip data, in which no place can be found without reading all before it."""
    with open_binary(name) as stream:
        return stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def hash_all(name: str) -> str:
    """SHA-256 of a file or object, or of the names and content of all files below a folder."""
    digest = hashlib.sha256()
    if is_url(name) or not Path(name).is_dir():
        _hash_file(name, digest)
        return digest.hexdigest()
    paths = _list_folder(name)
    for path in paths:
        if len(paths) > 1:
            digest.update(
                f"{path.relative_to(name)}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape")
            )
        _hash_file(str(path), digest)
    return digest.hexdigest()


def _hash_file(name: str, digest: Any) -> None:
    with open_binary(name) as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)


class RawLine(NamedTuple):
    """A line with its end, or a piece of a line that is longer than the limit."""

    content: bytes
    ends: bool
    """Whether the line ends with this piece."""
    is_blank: bool
    """Whether the whole line is blank, if it ends here."""


def scan_lines(name: str, n_bytes: int) -> Iterator[RawLine]:
    """Yield the lines of the first ``n_bytes`` bytes of a file, in pieces if they are very long."""
    limit, number, is_continued = max_line_bytes(), 0, False
    with open_binary(name) as stream:
        while n_bytes and (raw := stream.readline(min(limit + 1, n_bytes))):
            n_bytes -= len(raw)
            number += not is_continued
            ends = raw.endswith(b"\n") or not n_bytes
            yield RawLine(raw, ends, ends and not is_continued and _is_blank(raw, number))
            is_continued = not ends


def _is_blank(raw: bytes, number: int) -> bool:
    """Whether readers skip a line; one that is no valid text is an error instead."""
    if len(raw) > 100 and raw[:100].strip():
        return False
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not (text.removeprefix("\ufeff") if number == 1 else text).strip()


class RangeReader(io.RawIOBase):
    """A part of a file as a stream that hashes what is read."""

    def __init__(self, stream: BinaryIO, name: str, n_bytes: int) -> None:
        self.name = name  # for messages of readers
        self.digest = hashlib.sha256()
        self._stream, self._left = stream, n_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(block)
        self.digest.update(block)
        return block


@contextmanager
def open_part(file: InputFile, part: Part, source: ListSource) -> Iterator[Lists]:
    """Read the lists of a part.

    Raises:
        InputError: when all lists were read: the part is not what was planned.
    """
    if not file.is_lines:
        yield source.read_file(file.name)
        found = hash_all(file.name)
    else:
        with open_binary(file.name) as stream:
            stream.seek(part.start)
            lines = RangeReader(stream, file.name, part.end - part.start)
            yield source.read_lines(lines, part.first_line, file.header)  # type: ignore[arg-type]
            while lines.read(BLOCK_BYTES):
                pass
            found = lines.digest.hexdigest()
    if found != part.sha256:
        raise InputError(
            f"{file.name}: bytes {part.start:,} to {part.end:,} have changed since the plan, so nothing is "
            "committed; restore the file, or plan into another folder"
        )


def hash_part(file: InputFile, part: Part) -> str:
    """SHA-256 of a part as it is now."""
    if not file.is_lines:
        return hash_all(file.name)
    with open_binary(file.name) as stream:
        stream.seek(part.start)
        lines = RangeReader(stream, file.name, part.end - part.start)
        while lines.read(BLOCK_BYTES):
            pass
        return lines.digest.hexdigest()


def open_binary(name: str) -> BinaryIO:
    """Open a file or object; raises FormatError."""
    try:
        return open_named(name)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", file=name) from None
