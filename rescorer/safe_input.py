"""Read files, JSON, regular expressions and tensors from untrusted sources, within bounds of memory and time.

If a bound is exceeded, the error says which one.

- Files must be regular files. A FIFO, a device or a socket in place of a file must neither block the reader
nor feed it for ever. In a folder whose files are listed with their hashes, symbolic links must not lead out
of the folder. - Patterns of a bundle must match in bounded time, whatever the token. Python's engine tries
all ways to match, and no other thread runs meanwhile: ``(a+)+$`` on forty letters takes hours. Only patterns
whose time is bounded are accepted, and only tokens of ordinary length are matched. - The header of a
safetensors file gives types and shapes. A reader compares these with the types and shapes that it expects,
before it allocates anything.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BufferedReader
from itertools import islice
from pathlib import Path
from re import _constants as opcodes  # type: ignore[attr-defined]  # not in the stubs
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, BinaryIO, NamedTuple, TypeGuard

from rescorer.errors import BundleError, ConfigError, quote

MAX_JSON_BYTES = 4 << 20
"""Largest JSON file. Python needs up to about 30 times as much memory for the parsed values."""
MAX_JSON_DEPTH = 32
MAX_DIGITS = 18
"""Largest number of digits of an integer, so that it fits into 64 bits."""
SURROGATE = re.compile("[\ud800-\udfff]")  # halves of pairs: JSON joins pairs to characters


def parse_json(data: bytes, place: str, *, unique: bool = False) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        place: where the text comes from, for messages.
        unique: refuse objects that have a name twice; otherwise, the last value counts.

    Raises:
        BundleError: the text is not a JSON object, is nested too deeply, or has an integer of too many digits
            or a string that is not Unicode text.
    """
    hook = _make_unique if unique else None
    try:
        values = json.loads(data.decode("utf-8"), parse_int=_parse_int, object_pairs_hook=hook)
    except UnicodeDecodeError as error:
        raise BundleError(f"{place}: cannot be read as JSON: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BundleError(f"{place}: cannot be read as JSON: {error}") from None
    except (OverflowError, KeyError) as error:
        raise BundleError(f"{place}: {error.args[0]}") from None
    except RecursionError:
        raise BundleError(_too_deep(place)) from None
    if not isinstance(values, dict):
        raise BundleError(f"{place}: expected a JSON object")
    _check_values(values, place)
    return values


def _make_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        raise KeyError(f"{quote(counted.most_common(1)[0][0])} is there twice; expected each name once")
    return values


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise OverflowError(f"an integer has {len(digits):,} digits; expected at most {MAX_DIGITS}")
    return int(digits)


def _check_values(values: Any, place: str) -> None:
    """Raise BundleError if parsed JSON is nested too deeply, or a string in it is not Unicode text."""
    level = [values]
    for _ in range(MAX_JSON_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str) and SURROGATE.search(value):
                raise BundleError(f"{place}: a string has half of a surrogate pair; expected Unicode text")
        level = inner
        if not level:
            return
    raise BundleError(_too_deep(place))


def _too_deep(place: str) -> str:
    return f"{place}: values are nested too deeply; expected at most {MAX_JSON_DEPTH} levels"


MAX_FILES = 1000
"""Largest number of files and folders in a ``SealedFolder``."""
MAX_DEPTH = 8
"""Largest number of parts in a file's name; ``neural/config.json`` has 2 parts."""
MAX_NAME_BYTES = 255

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Folder:
    """A folder of files that the user named. Symbolic links are followed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, name: str) -> BufferedReader:
        """Open a file for reading. The ``name`` attribute of the stream is the file's path, for messages.

        Raises:
            BundleError: the file is missing, cannot be read, or is not a regular file.
        """
        path = self.path / name
        try:
            check_regular(path, os.stat(path))
            stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
        except OSError as error:
            raise BundleError(f"{path}: {_explain(error)}") from None
        return _checked(stream, path)

    def read_bytes(self, name: str, max_bytes: int) -> bytes:
        """Read a whole file; raise BundleError if it is larger than ``max_bytes``."""
        with self.open(name) as stream:
            size = os.fstat(stream.fileno()).st_size
            check_size(self.path / name, size, max_bytes)
            return stream.read(size)  # not `max_bytes`: read() allocates as many bytes as it is asked for

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON object; raise BundleError if it cannot be read, or exceeds a bound of this module."""
        return parse_json(self.read_bytes(name, MAX_JSON_BYTES), str(self.path / name))

    def subfolder(self, name: str) -> Folder:
        return Folder(self.path / name)


class SealedFolder(Folder):
    """A folder whose files are listed with their hashes and lie inside it, without symbolic links.

    The path to the folder itself may contain links. A file is hashed through the same descriptor from which
    it is then read. It is hashed again only after a change.

    Args:
        hashes: SHA-256 of each file by its name; None: files are neither listed nor hashed.
        prefix: for a subfolder, its name with ``/`` at the end, with which its names in ``hashes`` begin.
    """

    def __init__(self, path: Path, hashes: Mapping[str, str] | None = None, prefix: str = "") -> None:
        super().__init__(path)
        self._hashes, self._prefix = hashes, prefix
        self._verified: dict[str, tuple[int, ...]] = {}

    def open(self, name: str) -> BufferedReader:
        """Open a file, and verify its hash.

        Raises:
            BundleError: see ``Folder.open``; or the file is not listed, its content has another hash, or a
                part of its name is a symbolic link.
        """
        full_name = self._prefix + name
        check_name(full_name, str(self.path))
        if self._hashes is not None and full_name not in self._hashes:
            raise BundleError(f"{self.path / name}: the manifest does not list it")
        stream = self._open_inside(name)
        if self._hashes is not None:
            try:
                self._verify(full_name, stream, self._hashes[full_name])
            except BaseException:
                stream.close()
                raise
        return stream

    @property
    def hashes(self) -> Mapping[str, str]:
        """SHA-256 of each listed file, by its name in the whole folder."""
        return self._hashes or {}

    def seal(self, names: Iterable[str]) -> SealedFolder:
        """Hash some files as they are now; return a folder that has only these and opens them unchanged.

        Raises:
            BundleError: a file cannot be read.
        """
        hashes, verified = dict[str, str](), dict[str, tuple[int, ...]]()
        for name in names:
            with self.open(name) as stream:
                verified[name] = file_identity(stream)
                hashes[name] = sha256(stream)
        sealed = SealedFolder(self.path, hashes)
        sealed._verified = verified
        return sealed

    def verify(self) -> None:
        """Verify every listed file; raise BundleError if one is missing or has changed."""
        for name in self._hashes or ():
            self.open(name).close()

    def subfolder(self, name: str) -> SealedFolder:
        if not name:
            return self
        folder = SealedFolder(self.path / name, self._hashes, f"{self._prefix}{name}/")
        folder._verified = self._verified
        return folder

    def list_files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the name and status of each file of any kind below the folder, in the order of names.

        Raises:
            BundleError: there are too many files, one lies too deep, or a name is not UTF-8.
            OSError: the folder cannot be read.
        """
        pending = [""]
        n_entries = 0
        while pending:
            prefix = pending.pop()
            with os.scandir(self.path / prefix) as entries:
                for entry in sorted(islice(entries, MAX_FILES + 1), key=lambda entry: entry.name):
                    name = prefix + entry.name
                    check_name(name, str(self.path))
                    n_entries += 1
                    if n_entries > MAX_FILES:
                        message = f"more than {MAX_FILES} files and folders; expected a bundle"
                        raise BundleError(f"{self.path}: {message}")
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{name}/")
                    else:
                        yield name, entry.stat(follow_symlinks=False)

    def _open_inside(self, name: str) -> BufferedReader:
        """Open a file below the folder; refuse symbolic links on the way, even one made at this moment."""
        path = self.path / name
        *folders, last = name.split("/")
        descriptors: list[int] = []
        try:
            descriptors.append(os.open(self.path, os.O_RDONLY | os.O_DIRECTORY))
            for part in folders:
                _check_kind(path, os.lstat(part, dir_fd=descriptors[-1]), stat.S_IFDIR)
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                descriptors.append(os.open(part, flags, dir_fd=descriptors[-1]))
            check_regular(path, os.lstat(last, dir_fd=descriptors[-1]))
            return _checked(
                open(
                    path,
                    "rb",
                    opener=lambda _, flags: os.open(
                        last, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptors[-1]
                    ),
                ),
                path,
            )
        except OSError as error:
            raise BundleError(f"{path}: {_explain(error)}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _verify(self, name: str, stream: BufferedReader, expected: str) -> None:
        """Check the hash of an open file, unless the same content was verified before."""
        identity = file_identity(stream)
        if self._verified.get(name) == identity:
            return
        actual = sha256(stream)
        if actual != expected:
            raise BundleError(
                f"{stream.name}: corrupt: sha256 is {actual[:12]}…, but the manifest says {expected[:12]}…"
            )
        stream.seek(0)
        self._verified[name] = identity


def open_regular(path: Path) -> BufferedReader:
    """Open a file whose path the user gave. For errors, see ``Folder.open``."""
    return Folder(path.parent).open(path.name)


def descriptor_path(stream: BinaryIO) -> str:
    """A path of this open file, for libraries that open files by path; it outlives a renaming."""
    path = f"/proc/self/fd/{stream.fileno()}"
    return path if os.path.exists(path) else str(stream.name)


def sha256(stream: BufferedReader) -> str:
    """Hash a file from the present position on; return the hash in hexadecimal."""
    return hashlib.file_digest(stream, "sha256").hexdigest()


def check_name(name: str, place: str) -> None:
    """Raise BundleError unless a name is a relative path of plain parts, such as ``neural/config.json``."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or not name.isprintable():
        raise BundleError(
            f"{place}: the file name {_quote(name)} is not valid; expected a relative path inside the "
            "folder, without '..'"
        )
    if len(parts) > MAX_DEPTH or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise BundleError(
            f"{place}: the file name {_quote(name)} is too long; expected at most {MAX_DEPTH} parts of at "
            f"most {MAX_NAME_BYTES} bytes"
        )


def check_size(path: Path, size: int, max_bytes: int) -> None:
    """Raise BundleError if the size of a file is larger than ``max_bytes``."""
    if size > max_bytes:
        raise BundleError(f"{path}: has {size:,} bytes; expected at most {max_bytes:,} in such a file")


def check_regular(path: Path, status: os.stat_result) -> None:
    """Raise BundleError unless this is the status of a regular file."""
    _check_kind(path, status, stat.S_IFREG)


def _check_kind(path: Path, status: os.stat_result, expected: int) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != expected:
        found = _KINDS.get(kind, "a regular file")
        wanted = "a regular file" if expected == stat.S_IFREG else "a folder above it"
        raise BundleError(f"{path}: is {found} or lies below one; expected {wanted}")


def _checked(stream: BufferedReader, path: Path) -> BufferedReader:
    """Return an open stream if it is a regular file; otherwise close it and raise BundleError."""
    try:
        check_regular(path, os.fstat(stream.fileno()))
    except BaseException:
        stream.close()
        raise
    return stream


def file_identity(stream: BufferedReader) -> tuple[int, ...]:
    """Numbers that differ if the content of a file has changed."""
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _explain(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"


def _quote(name: str) -> str:
    return ascii(name[:200])


MAX_MATCHED_CHARACTERS = 100
"""Longest token that a pattern can match. A pattern with two repeats then takes at most the square of this
number of steps, a tenth of a millisecond."""
MAX_PATTERNS = 200
MAX_REPEATS = 2
"""Largest number of repeats, such as ``+``, in one pattern."""
REPEATS = (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT)


def compile_patterns(patterns: Sequence[str]) -> re.Pattern[str]:
    """Compile patterns into one pattern that matches if any of them does, ignoring case; see ``matches``.

    Raises:
        ConfigError: a pattern is invalid, or could take too long.
    """
    check_patterns(patterns)
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)", re.IGNORECASE)


def matches(pattern: re.Pattern[str], token: str) -> bool:
    """Whether a pattern matches a whole token."""
    return len(token) <= MAX_MATCHED_CHARACTERS and pattern.fullmatch(token) is not None


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ConfigError if there are too many patterns, or one is invalid or could take too long."""
    if len(patterns) > MAX_PATTERNS:
        raise ConfigError(f"{len(patterns):,} regular expressions; expected at most {MAX_PATTERNS}")
    for pattern in patterns:
        check_pattern(pattern)


@lru_cache(maxsize=256)  # a bundle and its ranker have the same patterns
def check_pattern(pattern: str) -> None:
    """Raise ConfigError if a pattern is not a regular expression, or could take too long to match."""
    try:
        re.compile(pattern)
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{quote(pattern)} is not a valid regular expression: {error}") from None
    nodes = iterate_nodes(parsed)
    repeats = [argument[2] for op, argument in nodes if op in REPEATS and argument[1] > 1]
    if len(repeats) > MAX_REPEATS:
        raise ConfigError(f"{quote(pattern)} has {len(repeats)} repeats; expected at most {MAX_REPEATS}")
    for body in repeats:
        shortest, longest = body.getwidth()
        if shortest != longest or shortest == 0 or any(op is opcodes.BRANCH for op, _ in iterate_nodes(body)):
            raise ConfigError(
                f"{quote(pattern)} repeats something that can match in several ways, which may take for "
                "ever; expected repeats of a single character or of a fixed text"
            )


def iterate_nodes(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each node of a parsed pattern, at all levels, as its operation and its arguments."""
    if isinstance(parsed, parser.SubPattern):
        for op, argument in parsed:
            yield op, argument
            yield from iterate_nodes(argument)
    elif isinstance(parsed, tuple | list):  # an argument of a node, which may contain patterns
        for part in parsed:
            yield from iterate_nodes(part)


MAX_HEADER_BYTES = 8 << 20
"""Largest header of a safetensors file: that of 60,000 tensors. Its library reads 100 MB, but parsed values
take up to about 30 times as much memory."""
MAX_DIMENSIONS = 4
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
INTEGER_BYTES = {"I8": 1, "I32": 4, "I64": 8}
OTHER_BYTES = {"BOOL": 1, "U8": 1, "I16": 2, "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1}
"""Types that no model here has, but that files of other toolkits can contain."""
TYPE_BYTES = FLOAT_BYTES | INTEGER_BYTES | OTHER_BYTES


class TensorInfo(NamedTuple):
    """Type and shape of a stored tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_tensor_header(stream: BinaryIO) -> dict[str, TensorInfo]:
    """Read the types and shapes in the header of a safetensors file, and rewind the file.

    Raises:
        BundleError: the header is damaged, or its tensors do not fill the file exactly.
    """
    size = os.fstat(stream.fileno()).st_size
    header_bytes = int.from_bytes(os.pread(stream.fileno(), 8, 0), "little")
    if size < 8 or header_bytes > min(MAX_HEADER_BYTES, size - 8):
        raise BundleError(
            f"{stream.name}: the header has {header_bytes:,} bytes; expected at most "
            f"{min(MAX_HEADER_BYTES, max(0, size - 8)):,} in a safetensors file of this size"
        )
    header = parse_json(os.pread(stream.fileno(), header_bytes, 8), f"{stream.name}: header", unique=True)
    header.pop("__metadata__", None)
    tensors = {
        name: _parse_tensor(f"{stream.name}: tensor {name[:100]!a}", entry) for name, entry in header.items()
    }
    total = sum(math.prod(info.shape) * TYPE_BYTES[info.dtype] for info in tensors.values())
    if total != size - 8 - header_bytes:
        raise BundleError(
            f"{stream.name}: has {size - 8 - header_bytes:,} bytes of tensors; its header says {total:,}: is "
            "the file cut off? Copy it again"
        )
    return tensors


def _parse_tensor(place: str, entry: Any) -> TensorInfo:
    if (
        not isinstance(entry, dict)
        or not _are_sizes(entry.get("shape"))
        or entry.get("dtype") not in [*TYPE_BYTES]
    ):
        raise BundleError(f"{place}: expected a shape, and a type that is one of {', '.join(TYPE_BYTES)}")
    info = TensorInfo(entry["dtype"], tuple(entry["shape"]))
    offsets = entry.get("data_offsets")
    n_bytes = math.prod(info.shape) * TYPE_BYTES[info.dtype]
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != n_bytes:
        raise BundleError(f"{place}: its offsets do not span the {n_bytes:,} bytes of its shape")
    return info


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(values, list)
        and len(values) <= MAX_DIMENSIONS
        and all(type(value) is int and value >= 0 for value in values)
    )


def format_shape(shape: Sequence[int]) -> str:
    """Write a shape for messages, such as ``64×200``."""
    return "×".join(map(str, shape[:8])) or "()"
