"""Store plans, records and output below a prefix of an object storage, and choose the store of a place."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from rescorer.errors import ConfigError, FormatError
from rescorer.shards.store import ATTEMPTS, LocalStore, OutputError, Store, StoredFile
from rescorer.storage.faults import error_code, explained
from rescorer.storage.objects import is_object, normalise, open_filesystem, open_object
from rescorer.storage.urls import as_local, base_name, is_url, protocol_of

EXCLUSIVE = ("s3", "s3a", "gs", "gcs")
"""Protocols whose file systems create an object only if there is none: ``If-None-Match: *`` of S3, and
``ifGenerationMatch=0`` of Google's storage. fsspec cannot say this of a file system."""
PART_BYTES = 8 << 20
"""Size of the parts in which large files are uploaded, and of which still larger ones take a multiple."""
MAX_PARTS = 9_000
"""Storages take 10,000 parts of a file."""
CONFLICT = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
"""Codes of a storage that could not decide which of several processes creates an object."""
CREATE_TIMES, WAIT_S = 6, 0.1
"""How often creation is tried if there are conflicts, and the first wait, which grows."""


@contextmanager
def open_store(place: str) -> Iterator[Store]:
    """The store at a folder, or at the URL of a prefix.

    Raises:
        ConfigError: the storage is not known to create an object only once, a package is missing, or the
            bucket cannot be used.
    """
    place = as_local(place)
    if not is_url(place):
        yield LocalStore(Path(place))
        return
    if protocol_of(place) not in EXCLUSIVE:
        known = ", ".join(f"{protocol}://" for protocol in EXCLUSIVE)
        raise ConfigError(
            f"{place}: this storage is not known to create an object only once, by which a shard is "
            f"committed once; expected a folder or {known}"
        )
    scratch = tempfile.mkdtemp(prefix="rescorer-shards-")
    try:
        store = ObjectStore(normalise(place), Path(scratch))
        store.check()
        yield store
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A prefix of an object storage.

    A record is created by a conditional request, which fails if there is such an object. Output is written to
    a folder of this machine first, since objects can only be stored as a whole.
    """

    place: str
    """URL of the prefix, without a slash at its end."""
    scratch_folder: Path

    def check(self) -> None:
        """Ask the storage for the names below the prefix; raises ConfigError if that is impossible."""
        filesystem = open_filesystem(self.place)
        try:
            with explained(self.place):
                filesystem.ls(self.place)
        except FileNotFoundError as error:
            if "bucket" in str(error.strerror):
                raise ConfigError(f"{self.place}: {error.strerror}") from None
        except OSError as error:
            raise ConfigError(f"{self.place}: {error.strerror}") from None

    def prepare(self) -> None:
        """Check that objects can be created, and only once; raises ConfigError."""
        probe = f"{ATTEMPTS}/{secrets.token_hex(6)}.probe"
        try:
            self._create(probe, b"first")
            with suppress(FileExistsError):
                self._create(probe, b"second")
                raise ConfigError(
                    f"--output {self.place}: this storage replaces an object that should be created only "
                    "once (it ignores If-None-Match), so that two processes could commit the same shard; "
                    "choose another storage or a folder"
                )
            self.delete(probe)
        except OSError as error:
            raise ConfigError(f"--output {self.place}: cannot be written: {error.strerror}") from None

    def scratch(self, name: str) -> Path:
        path = self.scratch_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def save(self, name: str) -> None:
        path = self.scratch(name)
        n_blocks = -(-path.stat().st_size // (MAX_PARTS * PART_BYTES))
        try:
            with explained(self._url(name)):
                self._filesystem.put_file(str(path), self._url(name), chunksize=PART_BYTES * max(1, n_blocks))
        except OSError as error:
            raise self._write_error(name, error) from error
        path.unlink()

    def create(self, name: str, content: bytes) -> bool:
        try:
            self._create(name, content)
        except FileExistsError:
            return self._holds(name, content)  # the answer to our own first request may have been lost
        except OSError as error:
            with suppress(FileNotFoundError, FormatError):
                return self._holds(name, content)
            raise self._write_error(name, error) from error
        return True

    def open(self, name: str) -> BinaryIO:
        return open_object(self._url(name))

    def exists(self, name: str) -> bool:
        return is_object(self._url(name))

    def list_files(self, folder: str) -> list[StoredFile]:
        now, url = time.time(), self._url(folder)
        try:
            with explained(url):
                found = self._filesystem.ls(url, detail=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FormatError(f"cannot be listed: {error.strerror}", file=url) from None
        files = [info for info in found if info["type"] == "file" and base_name(info["name"]) != folder]
        return sorted(
            StoredFile(f"{folder}/{base_name(info['name'])}", info["size"], max(0.0, now - _written_s(info)))
            for info in files
        )

    def delete(self, name: str) -> None:
        path = self.scratch_folder / name
        for written in (path, path.with_name(f".{path.name}.partial")):
            written.unlink(missing_ok=True)
        with suppress(FileNotFoundError), explained(self._url(name)):
            self._filesystem.rm_file(self._url(name))

    @property
    def _filesystem(self) -> Any:
        return open_filesystem(self.place)

    def _url(self, name: str) -> str:
        return f"{self.place}/{name}"

    def _create(self, name: str, content: bytes, times: int = CREATE_TIMES) -> None:
        """Create an object; raises FileExistsError if there is one, and any other OSError if that fails."""
        try:
            with explained(self._url(name)):
                self._filesystem.pipe_file(self._url(name), content, mode="create")
        except OSError as error:
            if error_code(error) not in CONFLICT or times == 1:
                raise
            time.sleep(WAIT_S * (1 + CREATE_TIMES - times))
            self._create(name, content, times - 1)

    def _holds(self, name: str, content: bytes) -> bool:
        """Whether an object is what this process created; records differ by the names of attempts."""
        with self.open(name) as stream:
            return stream.read(len(content) + 1) == content

    def _write_error(self, name: str, error: OSError) -> OutputError:
        message = f"cannot be written: {error.strerror or error}; repair this and --resume"
        return OutputError(message, file=self._url(name))


def _written_s(info: dict[str, Any]) -> float:
    """When an object was written, in seconds since 1970; the names are those of S3 and Google's storage."""
    written = info.get("LastModified") or info.get("mtime") or info.get("updated")
    if isinstance(written, str):
        written = datetime.fromisoformat(written)
    return written.timestamp() if isinstance(written, datetime) else datetime.now(UTC).timestamp()
