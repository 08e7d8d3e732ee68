"""Read files of a folder within bounds: regular files only, whatever else lies under their names.

A FIFO, a device or a socket in the place of a file must neither block the reader nor feed it for ever, and a
symbolic link must not lead out of a folder whose files are listed with their hashes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rescorer.errors import BundleError
from rescorer.safe_input.json import MAX_JSON_BYTES, parse_json

MAX_FILES = 1000
"""Largest number of files and folders in a sealed folder."""
MAX_DEPTH = 8
"""Largest number of parts in the name of a file, such as 2 for ``neural/config.json``."""
MAX_NAME_BYTES = 255

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Entry(NamedTuple):
    """A file below a folder."""

    name: str
    """Path relative to the folder, with ``/``."""
    status: os.stat_result


class Folder:
    """A folder of files that the user named; symbolic links are followed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, name: str) -> BufferedReader:
        """Open a file for reading; its ``name`` attribute is its path, for messages.

        Raises:
            BundleError: the file is missing, cannot be read, or is not a regular file.
        """
        path = self.path / name
        try:
            check_regular(path, os.stat(path))
            stream = open(path, "rb", opener=_open_without_blocking)  # noqa: SIM115  # the caller closes it
        except OSError as error:
            raise BundleError(f"{path}: {_explain(error)}") from None
        return _checked(stream, path)

    def read_bytes(self, name: str, max_bytes: int) -> bytes:
        """Read a whole file; raise BundleError if it is larger than ``max_bytes``."""
        with self.open(name) as stream:
            size = os.fstat(stream.fileno()).st_size
            check_size(self.path / name, size, max_bytes)
            return stream.read(size)  # a reader sets aside what it is asked for, hence not `max_bytes`

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON object; raise BundleError if it cannot be read or is not within the bounds."""
        return parse_json(self.read_bytes(name, MAX_JSON_BYTES), str(self.path / name))

    def subfolder(self, name: str) -> Folder:
        return Folder(self.path / name)


class SealedFolder(Folder):
    """A folder whose files lie inside it, with no symbolic links, and are listed with their hashes.

    The folder itself may be reached through links. A file is hashed through the descriptor that it is then
    read from, and only once unless it changes.

    Args:
        hashes: SHA-256 of each file by its name; None: files are neither listed nor hashed.
        prefix: name of a subfolder, with ``/`` at its end, to which names are relative.
    """

    def __init__(self, path: Path, hashes: Mapping[str, str] | None = None, prefix: str = "") -> None:
        super().__init__(path)
        self._hashes, self._prefix = hashes, prefix
        self._verified: dict[str, tuple[int, ...]] = {}

    def open(self, name: str) -> BufferedReader:
        """Open a file, and verify its hash.

        Raises:
            BundleError: besides the reasons of ``Folder.open``, the file is not listed, its content has
                another hash, or a part of its name is a symbolic link.
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

    def list_files(self) -> Iterator[Entry]:
        """Yield the files below the folder, whatever their kind, in the order of their names.

        Raises:
            BundleError: there are too many, or they lie too deep, or a name is not UTF-8.
            OSError: the folder cannot be read.
        """
        pending = [""]
        n_entries = 0
        while pending:
            prefix = pending.pop()
            with os.scandir(self.path / prefix) as entries:
                for entry in sorted(_take(entries, MAX_FILES + 1), key=lambda entry: entry.name):
                    name = prefix + entry.name
                    check_name(name, str(self.path))
                    n_entries += 1
                    if n_entries > MAX_FILES:
                        raise BundleError(
                            f"{self.path}: more than {MAX_FILES} files and folders; expected a bundle"
                        )
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{name}/")
                    else:
                        yield Entry(name, entry.stat(follow_symlinks=False))

    def _open_inside(self, name: str) -> BufferedReader:
        """Open a file; none of the parts of its name may be a symbolic link, not even one made meanwhile."""
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
        """Compare the hash of a file, unless this very content was verified before."""
        identity = _identity(stream)
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
    """Open a file that the user named; see ``Folder.open``."""
    return Folder(path.parent).open(path.name)


def descriptor_path(stream: BinaryIO) -> str:
    """A path by which libraries that open files themselves open this very file, whatever its name is now."""
    path = f"/proc/self/fd/{stream.fileno()}"
    return path if os.path.exists(path) else str(stream.name)


def sha256(stream: BufferedReader) -> str:
    """Hash the rest of a file."""
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
    """Raise BundleError if a file is larger than files of its kind may be."""
    if size > max_bytes:
        raise BundleError(f"{path}: has {size:,} bytes; expected at most {max_bytes:,} in such a file")


def check_regular(path: Path, status: os.stat_result) -> None:
    """Raise BundleError unless the status is that of a regular file."""
    _check_kind(path, status, stat.S_IFREG)


def _check_kind(path: Path, status: os.stat_result, expected: int) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != expected:
        found = _KINDS.get(kind, "a regular file")
        wanted = "a regular file" if expected == stat.S_IFREG else "a folder above it"
        raise BundleError(f"{path}: is {found} or lies below one; expected {wanted}")


def _checked(stream: BufferedReader, path: Path) -> BufferedReader:
    """Return a stream if it is still a regular file now that it is open."""
    try:
        check_regular(path, os.fstat(stream.fileno()))
    except BaseException:
        stream.close()
        raise
    return stream


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _identity(stream: BufferedReader) -> tuple[int, ...]:
    """Numbers that change whenever the content of a file does."""
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _explain(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"


def _quote(name: str) -> str:
    return ascii(name[:200])


def _take(entries: Iterator[os.DirEntry[str]], n: int) -> Iterator[os.DirEntry[str]]:
    return (entry for _, entry in zip(range(n), entries, strict=False))
