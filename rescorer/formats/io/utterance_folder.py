"""Owns folders that hold one file an utterance, whose name is the utterance's id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.io.text_io import Source, source_name
from rescorer.types import NBestList

MAX_NAME_BYTES = 240
"""File systems stop at 255; some room is left for endings."""


def find_utterance_files(source: Source, suffixes: Sequence[str] = ()) -> Iterator[tuple[str, Path]]:
    """Id and path of one file, or of every file of a folder by name (hidden ones and folders left out).

    Args:
        suffixes: endings that are no part of the id, beside ``.gz``; a folder's other files are left out.

    Raises:
        FormatError: the source has no name or is not there, or a folder has nothing to read.
    """
    if not isinstance(source, (str, Path)) or str(source) == "-":
        raise FormatError(
            "the file's name is the utterance's id: give a file or a folder", file=source_name(source)
        )
    path = Path(source)
    if not path.exists():
        raise FormatError("cannot be read: No such file or directory", file=str(source))
    if not path.is_dir():
        yield _id(path.name, suffixes) or path.name.removesuffix(".gz"), path
        return
    names = sorted(each.name for each in path.iterdir() if not each.name.startswith(".") and each.is_file())
    found = [(list_id, path / name) for name in names if (list_id := _id(name, suffixes))]
    if not found:
        raise FormatError(
            f"an empty folder; expected a file an utterance{_named(suffixes)}", file=str(source)
        )
    yield from found


def read_single_list_files(
    source: Source, read_file: Callable[[str, Path], NBestList | InputError]
) -> Iterator[NBestList | InputError]:
    """What ``read_file`` makes of each file's id and path, as ``read_list_files``."""
    return read_list_files(source, lambda list_id, path: iter([read_file(list_id, path)]))


def read_list_files(
    source: Source,
    read_file: Callable[[str, Path], Iterator[NBestList | InputError]],
    suffixes: Sequence[str] = (),
) -> Iterator[NBestList | InputError]:
    """All that ``read_file`` makes of each file's id and path, or its FormatError; an id twice is one too.

    Raises:
        FormatError: as ``find_utterance_files``.
    """
    seen: dict[str, Path] = {}
    for list_id, path in find_utterance_files(source, suffixes):
        if list_id in seen:
            yield FormatError(f"the list {list_id!r} is in {seen[list_id]} too", file=str(path))
            continue
        seen[list_id] = path
        try:
            yield from read_file(list_id, path)
        except FormatError as fault:
            yield fault


def _id(name: str, suffixes: Sequence[str]) -> str:
    """The name without its endings; empty where it has none of those asked for."""
    stem = name.removesuffix(".gz")
    if not suffixes:
        return stem
    return next((stem.removesuffix(suffix) for suffix in suffixes if stem.endswith(suffix)), "")


def _named(suffixes: Sequence[str]) -> str:
    return f" ({', '.join(suffixes)}, or those with .gz)" if suffixes else ""


def make_folder(target: str | Path) -> Path:
    """The folder to write to, made where there is none.

    Raises:
        FormatError: it is no folder and cannot be made one.
    """
    try:
        Path(target).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise FormatError(f"no folder can be made: {fault.strerror}", file=str(target)) from None
    return Path(target)


@contextmanager
def create_file(folder: Path, list_id: str, suffix: str = "") -> Iterator[TextIO]:
    """A file that did not exist before, called as the list is, with an ending that is no part of the id.

    Raises:
        InvalidList: the id can be no file name, or the file exists.
    """
    path = folder / f"{list_id}{suffix}"
    fits = len(list_id.encode("utf-8")) <= MAX_NAME_BYTES and not list_id.endswith(".gz")
    if not fits or not list_id or "/" in list_id or "\0" in list_id or list_id.startswith("."):
        message = "cannot be a file's name; expected no slash, no dot in front, no .gz, up to 240 bytes"
        raise InvalidList(message, list_id=list_id, field="id")
    try:
        stream = open(path, "x", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed below)
    except FileExistsError:
        message = f"{path} exists: the id is there twice, or the folder is not new"
        raise InvalidList(message, list_id=list_id, field="id") from None
    except OSError as fault:
        raise FormatError(f"cannot be written: {fault.strerror}", file=str(path)) from None
    with stream:
        yield stream


@contextmanager
def create_files(folders: Sequence[Path], list_id: str) -> Iterator[list[TextIO]]:
    """A list's new file in each of some folders; none is left where one of them cannot be made.

    Raises:
        InvalidList: as ``create_file``.
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
