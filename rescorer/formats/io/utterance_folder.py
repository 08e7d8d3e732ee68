"""Read and write folders with one file per utterance, in which the file name is the utterance id."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.io.text_io import Source, source_name
from rescorer.types import NBestList

MAX_NAME_BYTES = 240
"""Longest id that is used as a file name; file systems allow 255 bytes, suffix included."""

MAX_NAMED_ENTRIES = 6
"""Number of entries of a folder that a message names."""


def find_utterance_files(source: Source, suffixes: Sequence[str] = ()) -> Iterator[tuple[str, Path]]:
    """Yield the id and path of one file, or of all files in a folder in order of their names.

    Hidden files and nested folders are skipped.

    Args:
        suffixes: File name suffixes that are not part of the id, in addition to ``.gz``; files in a folder
            without any of them are skipped.

    Raises:
        FormatError: If the source has no name or does not exist, or a folder has no file to read.
    """
    if not isinstance(source, (str, Path)) or str(source) == "-":
        message = "expected a file or a folder, because the file name is the utterance id"
        raise FormatError(message, file=source_name(source))
    path = Path(source)
    if not path.exists():
        raise FormatError("cannot be read: No such file or directory", file=str(source))
    if not path.is_dir():
        yield _extract_id(path.name, suffixes) or path.name.removesuffix(".gz"), path
        return
    names = sorted(
        entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.is_file()
    )
    found = [(list_id, path / name) for name in names if (list_id := _extract_id(name, suffixes))]
    if not found:
        expected = f" named *{' or *'.join(suffixes)}, perhaps with .gz" if suffixes else ""
        raise FormatError(
            f"contains no utterances; expected one file per utterance{expected}", file=str(source)
        )
    yield from found


def natural_key(name: str) -> list[tuple[int, str]]:
    """A sort key by which numbers in names count as numbers.

    >>> sorted(["nbest.10", "nbest.9", "a"], key=natural_key)
    ['a', 'nbest.9', 'nbest.10']
    """
    pieces = re.split(r"([0-9]+)", name)
    return [(int(piece), piece) if index % 2 else (0, piece) for index, piece in enumerate(pieces)]


def name_entries(folder: Path) -> str:
    """Name what is in a folder, for messages: names that differ in a number are one entry, with the first and
    the last; folders end with a slash. Empty if nothing is in it."""
    groups: dict[str, list[str]] = defaultdict(list)
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in sorted(entries, key=lambda entry: natural_key(entry.name)):
        name = f"{entry.name}/" if entry.is_dir() else entry.name
        groups[re.sub(r"[0-9]+", "0", name)].append(name)
    shown = [names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}" for names in groups.values()]
    more = len(shown) - MAX_NAMED_ENTRIES
    if more > 0:
        shown = [*shown[:MAX_NAMED_ENTRIES], f"{more:,} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def list_files(source: str | Path) -> list[Path]:
    """Return a file or folder of lists, and all files below the folder."""
    path = Path(source)
    return [path, *(filter(Path.is_file, path.rglob("*")) if path.is_dir() else ())]


def read_single_list_files(
    source: Source, read_file: Callable[[str, Path], NBestList | InputError]
) -> Iterator[NBestList | InputError]:
    """Like ``read_list_files``, for formats with a single list per file."""
    return read_list_files(source, lambda list_id, path: iter([read_file(list_id, path)]))


def read_list_files(
    source: Source,
    read_file: Callable[[str, Path], Iterator[NBestList | InputError]],
    suffixes: Sequence[str] = (),
) -> Iterator[NBestList | InputError]:
    """Call ``read_file`` with the id and path of each file; yield the lists that it returns, or its error.

    A second file with the same id is an error.

    Raises:
        FormatError: As for ``find_utterance_files``.
    """
    seen: dict[str, Path] = {}
    for list_id, path in find_utterance_files(source, suffixes):
        if list_id in seen:
            yield FormatError(f"duplicate id {list_id!r}; already read from {seen[list_id]}", file=str(path))
            continue
        seen[list_id] = path
        try:
            yield from read_file(list_id, path)
        except FormatError as error:
            yield error


def _extract_id(name: str, suffixes: Sequence[str]) -> str:
    """Return a file name without its suffix, or an empty string if none of ``suffixes`` matches."""
    stem = name.removesuffix(".gz")
    if not suffixes:
        return stem
    return next((stem.removesuffix(suffix) for suffix in suffixes if stem.endswith(suffix)), "")


@contextmanager
def create_file(folder: Path, list_id: str, suffix: str = "") -> Iterator[TextIO]:
    """Create a file named after a list, with a suffix that is not part of the id.

    Raises:
        InvalidList: If the id cannot be a file name, or the file exists.
        FormatError: If the file cannot be created.
    """
    path = folder / f"{list_id}{suffix}"
    fits = len(list_id.encode("utf-8")) <= MAX_NAME_BYTES and not list_id.endswith(".gz")
    if not fits or not list_id or "/" in list_id or "\0" in list_id or list_id.startswith("."):
        message = (
            f"cannot be a file name; expected 1 to {MAX_NAME_BYTES} bytes, no slash, no leading dot, no .gz"
        )
        raise InvalidList(message, list_id=list_id, field="id")
    try:
        stream = open(path, "x", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed below)
    except FileExistsError:
        message = f"{path} exists already: either the id is a duplicate, or the folder was not empty"
        raise InvalidList(message, list_id=list_id, field="id") from None
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=str(path)) from None
    with stream:
        yield stream


@contextmanager
def create_files(folders: Sequence[Path], list_id: str) -> Iterator[list[TextIO]]:
    """Create a file named after a list in each folder; if one of them fails, delete the others.

    Raises:
        InvalidList: As for ``create_file``.
        FormatError: As for ``create_file``.
    """
    with ExitStack() as stack:
        streams: list[TextIO] = []
        try:
            for folder in folders:
                streams.append(stack.enter_context(create_file(folder, list_id)))
        except (FormatError, InvalidList):
            for folder, _ in zip(folders, streams, strict=False):
                (folder / list_id).unlink()
            raise
        yield streams
