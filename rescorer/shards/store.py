"""Store plans, records and output under names that can be created only once.

``Store`` is what the other modules need of a storage; ``LocalStore`` is a folder of a file system. For object
storages, see ``object_store``.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io.targets import WRITE_ERRORS

PLAN = "plan.json"
RECORDS, ATTEMPTS = "records", "attempts"
ATTEMPT_NAME = re.compile(
    rf"{ATTEMPTS}/(\.?[0-9]{{6}}\.[0-9a-f]+\..+|.+\.json\.[0-9a-f]{{12}}\.draft|[0-9a-f]{{12}}\.probe)"
)
"""Names of what attempts write, also before it is complete; other files below ``ATTEMPTS`` are of others."""
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of a file system without hard links."""


class OutputError(FormatError):
    """The output cannot be written, as on a full disk; nothing of the shard is committed."""


class StoredFile(NamedTuple):
    """A file of a store."""

    name: str
    n_bytes: int
    age_s: float
    """Seconds since it was last written."""


class Store(Protocol):
    """A folder, or a prefix of an object storage. Names are relative and have ``/`` between their parts."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""

    def prepare(self) -> None:
        """Make the place ready for a plan; raises ConfigError if that is impossible."""

    def scratch(self, name: str) -> Path:
        """Path at which a file is written before ``save`` stores it under its name."""

    def save(self, name: str) -> None:
        """Store a written file durably; raises OutputError if the storage is full or fails."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file durably and as a whole; return False, and change nothing, if the name is taken.

        Of several processes that create the same name, exactly one gets True.

        Raises:
            OutputError: the storage is full or fails.
        """

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; raises FileNotFoundError."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def list_files(self, folder: str) -> list[StoredFile]:
        """List the files of a folder by name; none if there is no such folder."""

    def delete(self, name: str) -> None:
        """Delete a file if it exists, or the part of it that was written to its scratch path."""


def is_own_file(store: Store, name: str) -> bool:
    """Whether an input is a file of the store itself, which may lie below a prefix of the input."""
    inner = name.removeprefix(f"{store.place}/")
    return inner != name and (inner == PLAN or inner.startswith((f"{RECORDS}/", f"{ATTEMPTS}/")))


def read_file(store: Store, name: str, max_bytes: int) -> bytes:
    """Read a whole file; raises FileNotFoundError, or FormatError if it is larger than it can be."""
    with store.open(name) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FormatError(f"has more than {max_bytes:,} bytes", file=f"{store.place}/{name}")
    return content


def is_count(value: Any) -> bool:
    """Whether a value of a file is a whole number from 0 on."""
    return type(value) is int and value >= 0


def is_sha256(value: Any) -> bool:
    """Whether a value of a file is a hash in hexadecimal digits."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder of a file system with hard links, which several machines may share.

    A record is created by ``link(2)``, which fails if the name exists; a rename would replace the other's.
    """

    folder: Path

    @property
    def place(self) -> str:
        return str(self.folder)

    def prepare(self) -> None:
        """Create the folders; raises ConfigError if that is impossible."""
        try:
            for name in (RECORDS, ATTEMPTS):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            _sync_folder(self.folder)
        except OSError as error:
            raise ConfigError(f"--output {self.folder}: cannot be written: {error.strerror}") from None

    def scratch(self, name: str) -> Path:
        return self.folder / name

    def save(self, name: str) -> None:
        path = self.folder / name
        try:
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
            _sync_folder(path.parent)
        except OSError as error:
            raise _write_error(path, error) from None

    def create(self, name: str, content: bytes) -> bool:
        path = self.folder / name
        draft = self.folder / ATTEMPTS / f"{path.name}.{secrets.token_hex(6)}.draft"
        try:
            with open(draft, "xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            created = _link(draft, path)
            _sync_folder(path.parent)
        except OSError as error:
            raise _write_error(path, error) from None
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        return created

    def open(self, name: str) -> BinaryIO:
        return open(self.folder / name, "rb")

    def exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    def list_files(self, folder: str) -> list[StoredFile]:
        now, found = time.time(), []
        with suppress(FileNotFoundError), os.scandir(self.folder / folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted since it was listed
                    status = entry.stat()
                    found.append(StoredFile(f"{folder}/{entry.name}", status.st_size, now - status.st_mtime))
        return sorted(found)

    def delete(self, name: str) -> None:
        path = self.folder / name
        for written in (path, path.with_name(f".{path.name}.partial")):
            written.unlink(missing_ok=True)


def _link(draft: Path, path: Path) -> bool:
    """Give a file a second name; return False if the name is taken by another file."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return path.samefile(
            draft
        )  # NFS repeats a request whose answer was lost: the first one made the link
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        message = "this file system has no hard links, by which a shard is committed only once"
        raise ConfigError(f"{path}: {message}; choose a folder on another one") from None
    return True


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(path: Path, error: OSError) -> Exception:
    """The error of this project for a full or failing disk; any other error as it is."""
    if error.errno not in WRITE_ERRORS:
        return error
    return output_error(str(path), error)


def output_error(place: str, error: OSError) -> OutputError:
    """The error for a full or failing disk."""
    message = (
        f"cannot be written: {error.strerror}; nothing of this shard is committed: make room and --resume"
    )
    return OutputError(message, file=place)
