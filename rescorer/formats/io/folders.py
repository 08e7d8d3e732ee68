"""Sample files and folders to detect their format; read and write folders with one file per utterance."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.io.text_io import (
    EncodingError,
    NumberedLine,
    Source,
    is_parquet,
    open_named,
    read_lines,
    source_name,
)
from rescorer.storage import base_name, find_objects, is_object, is_url
from rescorer.types import NBestList

Lists = Iterator[NBestList | InputError]
"""The output of readers: lists, and an error in place of each list that cannot be read."""
SAMPLE_LINES = 50
SAMPLE_CHARACTERS = 1 << 16
"""Number of characters to sample from a JSON file, even if they are on more than ``SAMPLE_LINES`` lines."""
MAX_LINES = 10_000
"""Maximum number of lines to read for a sample. JSON and files with many comments may need so many."""
COMMENT = ";;"
"""The beginning of comments in NIST's formats. Comments as long as a licence may precede the other lines."""
MAX_CHARACTERS = 1 << 20
"""Maximum number of characters of a sample that are parsed as JSON. The line that exceeds it is the last."""
MAX_DOCUMENTS = 50
ID_AT_END = re.compile(r"\([^()]*[\d._-][^()]*\)$")
MAGIC_BYTES = 5
DOCUMENT_START = re.compile(r"(?:\A|(?<=\n))[ \t]*[\[{]|(?<=[\]}])\s*[\[{]")
"""Matches the start of a JSON document, at the start of a line or after another document."""
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
    """The first lines of the file, or of the folder's first file. Comments are included, but blank lines and
    lines that are not text are left out."""
    magic: bytes = b""
    """The first bytes of the file, or of the folder's first file."""
    documents: tuple[Any, ...] = ()
    """Values of the JSON documents in ``lines``. The last value is incomplete if the lines end within it."""
    excess: str = ""
    """The reason why the first line is not read although it is text; empty if there is none."""

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
    def document(self) -> Any:
        """The first JSON document of a file; None if the file has none, or the path is a folder."""
        return self.documents[0] if self.documents and not self.is_folder else None

    @property
    def record(self) -> dict[str, Any]:
        """The first line as a JSON object; an empty dict if the line is something else.

        Of a very long line, only the values at its beginning are parsed.
        """
        if len(self.first) > MAX_CHARACTERS:
            return self.documents[0] if self.documents and isinstance(self.documents[0], dict) else {}
        try:
            value = json.loads(self.first)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


def ends_with_id(line: str) -> bool:
    """Whether a line ends with the id of a trn, such as ``(u1)``.

    Letters alone in parentheses do not count, because they may be an optional word.
    """
    return ID_AT_END.search(line.rstrip()) is not None


def read_sample(path: str | Path) -> Sample:
    """Read the first lines of a file, or of an object in object storage.

    For a folder, or a prefix in object storage, read the names in it and the first lines of its first file.

    Raises:
        FormatError: the file cannot be opened.
    """
    names, first = _find_entries(path)
    magic = _read_magic(first) if first else b""
    is_text = first and not is_parquet(magic)
    lines = tuple(_read_beginning(first)) if first and is_text else ()
    texts = tuple(line for line in lines if isinstance(line, str))
    excess = lines[0].message if lines and isinstance(lines[0], FormatError) else ""
    documents = tuple(parse_beginnings("\n".join(texts)[:MAX_CHARACTERS]))
    return Sample(Path(path), names, texts, magic, documents, excess)


def _read_beginning(path: str | Path) -> Iterator[str | FormatError]:
    """Yield the first lines that are text and not blank, or their errors if they are too long.

    If they are JSON or comments, more of them are yielded.
    """
    n_left, n_characters, is_json = SAMPLE_LINES, 0, False
    for _, text in islice(read_lines(path), MAX_LINES):
        if isinstance(text, FormatError):
            if not isinstance(text, EncodingError):
                yield text
        elif text.strip():
            is_json = is_json or (not n_characters and text.lstrip().startswith(("{", "[")))
            n_characters += len(text) + 1
            yield text
            n_left += text.startswith(COMMENT)
        n_left -= 1
        is_long_enough = not (is_json and n_characters < SAMPLE_CHARACTERS)
        if n_characters > MAX_CHARACTERS or (n_left <= 0 and is_long_enough):
            return


def take_head(lines: Iterator[NumberedLine]) -> Iterator[NumberedLine]:
    """Yield the first lines of a file, as many as a sample has at most, and take no more."""
    n_characters = 0
    for line, text in islice(lines, SAMPLE_LINES):
        yield line, text
        n_characters += len(str(text))
        if n_characters > MAX_CHARACTERS:
            return


def parse_beginnings(text: str) -> Iterator[Any]:
    """Yield the first JSON documents of a text. The text may end within the last document.

    Text that is not JSON is skipped, up to the next line that starts with a bracket.

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
    """Parse a JSON document whose end is missing. Leave out incomplete values. Return None if this fails."""
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
    """Return the names in a folder or below a prefix, and its first file. A file has no names in it."""
    if is_url(path):
        if is_object(str(path)):
            return (), path
        found = list_objects(str(path))
        return tuple(base_name(name).removesuffix(".gz") for name in found), found[0]
    if not Path(path).is_dir():
        return (), path
    entries = list_entries(Path(path))
    names = tuple(entry.name.removesuffix(".gz") for entry in entries)
    return names, next((entry for entry in entries if entry.is_file()), None)


def list_objects(url: str) -> list[str]:
    """Return the URLs of the objects in object storage below a prefix.

    Raises:
        FormatError: there are no such objects.
    """
    try:
        return find_objects(url)
    except FileNotFoundError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=url) from None


def _read_magic(path: str | Path) -> bytes:
    try:
        with open_named(path) as stream:
            return stream.read(MAGIC_BYTES)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", file=str(path)) from None


MAX_NAME_BYTES = 240
"""Maximum bytes of an id that is used as a file name. File systems allow 255 bytes, with the suffix."""

MAX_NAMED_ENTRIES = 6
"""Number of entries of a folder that a message names."""


def find_utterance_files(source: Source, suffixes: Sequence[str] = ()) -> Iterator[tuple[str, Path]]:
    """Yield the id and the path of a file; for a folder, of each file in it, in order of their names.

    The id is the name of the file without ``.gz`` and without a suffix. Hidden files and nested folders are
    skipped.

    Args:
        suffixes: file name suffixes that are not part of the id. If there are any, files of a folder that
            have none of them are skipped.

    Raises:
        FormatError: the source has no name or does not exist, or a folder has no file to read.
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
    files = [entry for entry in list_entries(path) if entry.is_file()]
    found = [(list_id, file) for file in files if (list_id := _extract_id(file.name, suffixes))]
    if not found:
        expected = f" named *{' or *'.join(suffixes)}, perhaps with .gz" if suffixes else ""
        raise FormatError(
            f"contains no utterances; expected one file per utterance{expected}", file=str(source)
        )
    yield from found


def list_entries(folder: Path, key: Callable[[str], Any] = str) -> list[Path]:
    """Return the entries of a folder that are not hidden.

    Args:
        key: returns the value by which to sort an entry, given its name.
    """
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entries, key=lambda entry: key(entry.name))


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the values of the numbers in them.

    >>> sorted(["nbest.10", "nbest.9", "a"], key=natural_key)
    ['a', 'nbest.9', 'nbest.10']
    """
    pieces = re.split(r"([0-9]+)", name)
    return [(int(piece), piece) if index % 2 else (0, piece) for index, piece in enumerate(pieces)]


def name_entries(folder: Path) -> str:
    """List the names in a folder for a message; return an empty string if the folder is empty.

    Of names that differ only in numbers, the first and the last are shown: ``a.1/ … a.9/ and b.txt``.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for entry in list_entries(folder, natural_key):
        name = f"{entry.name}/" if entry.is_dir() else entry.name
        groups[re.sub(r"[0-9]+", "0", name)].append(name)
    shown = [names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}" for names in groups.values()]
    more = len(shown) - MAX_NAMED_ENTRIES
    if more > 0:
        shown = [*shown[:MAX_NAMED_ENTRIES], f"{more:,} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def list_files(source: str | Path) -> list[Path]:
    """Return the path of a file or folder, followed for a folder by the paths of all files below it."""
    path = Path(source)
    return [path, *(filter(Path.is_file, path.rglob("*")) if path.is_dir() else ())]


def read_list_files(
    source: Source, read_file: Callable[[str, Path], Lists], suffixes: Sequence[str] = ()
) -> Lists:
    """Yield the lists of one file, or of all files in a folder.

    A file yields an error if it cannot be read, or if an earlier file has the same id.

    Args:
        read_file: reads a file, given its id and path.
        suffixes: as for ``find_utterance_files``.

    Raises:
        FormatError: as for ``find_utterance_files``.
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
    """Return a file name without its suffix; "" if there are ``suffixes``, and the name has none of them."""
    stem = name.removesuffix(".gz")
    if not suffixes:
        return stem
    return next((stem.removesuffix(suffix) for suffix in suffixes if stem.endswith(suffix)), "")


@contextmanager
def create_files(folders: Sequence[Path], list_id: str, suffix: str = "") -> Iterator[list[TextIO]]:
    """Create a file in each folder, named after a list. If one cannot be created, delete the others.

    Args:
        suffix: the end of the file names, which is not part of the id.

    Raises:
        InvalidList: the id cannot be a file name, or a file exists.
        FormatError: a file cannot be created.
    """
    streams: list[TextIO] = []
    with ExitStack() as stack:
        try:
            for folder in folders:
                streams.append(stack.enter_context(_create_file(folder / f"{list_id}{suffix}", list_id)))
        except (FormatError, InvalidList):
            for stream in streams:
                Path(stream.name).unlink()
            raise
        yield streams


def _create_file(path: Path, list_id: str) -> TextIO:
    fits = len(list_id.encode("utf-8")) <= MAX_NAME_BYTES and not list_id.endswith(".gz")
    if not fits or not list_id or "/" in list_id or "\0" in list_id or list_id.startswith("."):
        message = (
            f"cannot be a file name; expected 1 to {MAX_NAME_BYTES} bytes, no slash, no leading dot, no .gz"
        )
        raise InvalidList(message, list_id=list_id, field="id")
    try:
        return open(path, "x", encoding="utf-8", newline="\n")
    except FileExistsError:
        message = f"{path} exists already: either the id is a duplicate, or the folder was not empty"
        raise InvalidList(message, list_id=list_id, field="id") from None
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=str(path)) from None
