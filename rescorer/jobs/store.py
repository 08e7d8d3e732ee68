"""Store plans, records and output under names that can be created only once, on disk or in object storage.

A record is a small file that says which output files belong to a shard. A shard is committed once its record
exists. An attempt is one process's try to rescore a shard. Its files have names that no other attempt uses.

``Store`` is the interface that the other modules use. ``LocalStore`` is a folder of a file system, and
``ObjectStore`` is a prefix in an object storage such as S3.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io.text_io import WRITE_ERRORS
from rescorer.jobs.files import FileSummary
from rescorer.storage import (
    as_local,
    base_name,
    error_code,
    explained,
    is_object,
    is_url,
    normalise,
    open_filesystem,
    open_object,
    protocol_of,
)

PLAN = "plan.json"
RECORDS, ATTEMPTS = "records", "attempts"
ATTEMPT_NAME = re.compile(
    rf"{ATTEMPTS}/(\.?[0-9]{{6}}\.[0-9a-f]+\..+|.+\.json\.[0-9a-f]{{12}}\.draft|[0-9a-f]{{12}}\.probe)"
)
"""Matches the names of files that attempts write, complete or not. Other files in ``ATTEMPTS`` are
ignored."""
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Error numbers by which a file system says that it has no hard links."""


class OutputError(FormatError):
    """The output cannot be written, for example because the disk is full; the shard is not committed."""


class StoredFile(NamedTuple):
    """A file of a store."""

    name: str
    n_bytes: int
    age_s: float
    """Seconds since it was last written."""


class Store(Protocol):
    """A folder, or a prefix in an object storage. Names of files are relative: ``records/000001.json``."""

    @property
    def place(self) -> str:
        """The folder or URL, for messages."""

    def prepare(self) -> None:
        """Make the folder or prefix ready for a plan; raise ConfigError if that is impossible."""

    def scratch(self, name: str) -> Path:
        """The local path to which the caller writes a file before ``save`` stores the file under its name."""

    def save(self, name: str) -> None:
        """Store the file that was written to the scratch path durably; raise OutputError if the storage is
        full or fails."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a complete, durable file, unless the name is taken; return whether it was created.

        If several processes create the same name, exactly one of them gets True.

        Raises:
            OutputError: the storage is full or fails.
        """

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; raise FileNotFoundError if there is none."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def list_files(self, folder: str) -> list[StoredFile]:
        """List the files of a folder by name; none if there is no such folder."""

    def delete(self, name: str) -> None:
        """Delete a file, and what was written of it at its scratch path, if these exist."""


def is_own_file(store: Store, name: str) -> bool:
    """Whether a file found below an input folder belongs to the store, which may lie in that folder."""
    inner = name.removeprefix(f"{store.place}/")
    return inner != name and (inner == PLAN or inner.startswith((f"{RECORDS}/", f"{ATTEMPTS}/")))


def read_file(store: Store, name: str, max_bytes: int) -> bytes:
    """Read a whole file; raise FileNotFoundError if there is none, FormatError if it exceeds
    ``max_bytes``."""
    with store.open(name) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FormatError(f"has more than {max_bytes:,} bytes", file=f"{store.place}/{name}")
    return content


def is_count(value: Any) -> bool:
    """Whether a value that was read from a file is an integer of at least 0."""
    return type(value) is int and value >= 0


def is_sha256(value: Any) -> bool:
    """Whether a value that was read from a file is a SHA-256 in hexadecimal digits."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A store in a folder of a file system with hard links, which several machines may share.

    A record is created by ``link(2)``, which fails if the name exists. A rename would replace the record of
    another process.

    Other users who may write to the folder can put symbolic links into it. All methods raise ConfigError for
    a name that leads out of the folder, so that nothing is read, written or deleted elsewhere.
    """

    folder: Path

    @property
    def place(self) -> str:
        return str(self.folder)

    def prepare(self) -> None:
        """Create the folders; raise ConfigError if that is impossible."""
        try:
            for name in (RECORDS, ATTEMPTS):
                self._find(name).mkdir(parents=True, exist_ok=True)
            _sync_folder(self.folder)
        except OSError as error:
            raise ConfigError(f"--output {self.folder}: cannot be written: {error.strerror}") from None

    def scratch(self, name: str) -> Path:
        return self._find(name)

    def save(self, name: str) -> None:
        path = self._find(name)
        try:
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
            _sync_folder(path.parent)
        except OSError as error:
            raise _write_error(path, error) from None

    def create(self, name: str, content: bytes) -> bool:
        path = self._find(name)
        draft = self._find(f"{ATTEMPTS}/{path.name}.{secrets.token_hex(6)}.draft")
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
        path = self._find(name)
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise ConfigError(f"{path}: is no regular file; expected a file of this folder's shards")
        return open(path, "rb")

    def exists(self, name: str) -> bool:
        return self._find(name).exists()

    def list_files(self, folder: str) -> list[StoredFile]:
        now, found = time.time(), []
        with suppress(FileNotFoundError), os.scandir(self._find(folder)) as entries:
            for entry in entries:
                if entry.is_symlink():
                    self._find(f"{folder}/{entry.name}")
                with suppress(FileNotFoundError):  # deleted since it was listed
                    status = entry.stat()
                    found.append(StoredFile(f"{folder}/{entry.name}", status.st_size, now - status.st_mtime))
        return sorted(found)

    def delete(self, name: str) -> None:
        _unlink(self._find(name))

    def _find(self, name: str) -> Path:
        """Return the path of a file or folder; raise ConfigError if a link on it leads out of the folder."""
        path = self.folder / name
        inside, found = os.path.realpath(self.folder), os.path.realpath(path)
        if os.path.commonpath([inside, found]) != inside:
            raise ConfigError(
                f"{path}: is a symbolic link, or lies below one, that leads out of the folder to {found}; "
                "expected everything inside the folder: remove the link, or give the folder it leads to"
            )
        return path


def _unlink(path: Path) -> None:
    """Delete a file, and its partial file, to which it was written at first, if these exist."""
    for written in (path, path.with_name(f".{path.name}.partial")):
        written.unlink(missing_ok=True)


def _link(draft: Path, path: Path) -> bool:
    """Give a file a second name; return False if the name is taken by another file."""
    try:
        os.link(draft, path)
    except FileExistsError:
        # NFS repeats a request whose answer was lost: the link may be that of the first request.
        return path.samefile(draft)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        message = "this file system has no hard links, by which a shard is committed only once"
        raise ConfigError(f"{path}: {message}; choose a folder on another one") from None
    return True


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, so that they survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(path: Path, error: OSError) -> Exception:
    """The OutputError for a full or failing disk, or ``error`` itself if it says something else."""
    if error.errno not in WRITE_ERRORS:
        return error
    return output_error(str(path), error)


def output_error(place: str, error: OSError) -> OutputError:
    """The error for a full or failing disk."""
    message = (
        f"cannot be written: {error.strerror}; nothing of this shard is committed: make room and --resume"
    )
    return OutputError(message, file=place)


NAME_DIGITS = 6
MAX_RECORD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of an attempt."""

    name: str
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Record:
    """The files and counts of a committed shard."""

    shard: int
    plan: str
    """Fingerprint of the plan."""
    attempt: str
    data: DataFile
    rejects: DataFile | None
    """Rejected lists; None if there are none."""
    summary: FileSummary
    seconds: float
    """Time from start to commit; loading the models is not included."""
    worker: str
    """Machine and process that committed the shard, as ``host:pid``."""

    def encode(self) -> bytes:
        """The record as a line of JSON, whose last entry is a checksum of the others."""
        body = json.dumps(asdict(self))
        return f'{body[:-1]}, "sha256": "{_checksum(body)}"}}\n'.encode()


def record_name(shard: int) -> str:
    """Name of a shard's record in its store."""
    return f"{RECORDS}/{shard:0{NAME_DIGITS}}.json"


def shard_of_record(name: str) -> int | None:
    """The shard whose record has this name; None if it is not the name of a record."""
    match = re.fullmatch(rf"{RECORDS}/(\d{{{NAME_DIGITS}}})\.json", name)
    return int(match[1]) if match else None


def read_record(store: Store, shard: int, plan: str) -> Record | None:
    """Read the record of a shard; None if the shard is not committed.

    Args:
        plan: fingerprint of the plan.

    Raises:
        FormatError: the record was changed, or it belongs to another plan or shard.
    """
    place = f"{store.place}/{record_name(shard)}"
    try:
        with store.open(record_name(shard)) as stream:
            content = stream.read(MAX_RECORD_BYTES + 1)
    except FileNotFoundError:
        return None
    record = _parse(content, place)
    if (record.shard, record.plan) != (shard, plan):
        raise FormatError("belongs to another plan or shard; remove it and --resume", file=place)
    return record


def _parse(content: bytes, place: str) -> Record:
    try:
        if len(content) > MAX_RECORD_BYTES:
            raise ValueError
        data = json.loads(content)
        checksum = data.pop("sha256")
        rejects = data.pop("rejects")
        record = Record(
            data=DataFile(**data.pop("data")),
            rejects=None if rejects is None else DataFile(**rejects),
            summary=FileSummary(**data.pop("summary")),
            **data,
        )
        intact = checksum == _checksum(json.dumps(asdict(record))) and _is_valid(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        message = "this record was changed or damaged; remove it and --resume, which does the shard again"
        raise FormatError(message, file=place)
    return record


def _is_valid(record: Record) -> bool:
    """Whether all values have the right types, and all names of files are those of an attempt at this shard.

    A record that names any other file is refused, so that no such file is ever read.
    """
    files = [record.data] if record.rejects is None else [record.data, record.rejects]
    attempt = f"{ATTEMPTS}/{record.shard:0{NAME_DIGITS}}.{record.attempt}."
    return (
        all(is_count(count) for count in (record.shard, *record.summary.to_dict().values()))
        and re.fullmatch("[0-9a-f]+", record.attempt) is not None
        and all(file.name.startswith(attempt) and "/" not in file.name[len(attempt) :] for file in files)
        and all(is_count(file.n_bytes) and is_sha256(file.sha256) for file in files)
        and isinstance(record.seconds, int | float)
        and isinstance(record.worker, str)
    )


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


EXCLUSIVE = ("s3", "s3a", "gs", "gcs")
"""Protocols of storages that can be asked to create an object only if it does not exist: S3 by
``If-None-Match: *``, and Google's storage by ``ifGenerationMatch=0``. fsspec does not say which file systems
can do this."""
PART_BYTES = 8 << 20
"""Size of the parts in which files are uploaded; larger for files that would have more than ``MAX_PARTS``."""
MAX_PARTS = 9_000
"""Largest number of parts of a file; storages accept 10,000."""
CONFLICT = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
"""Error codes by which a storage says that several processes tried to create an object at the same time."""
CREATE_TIMES, WAIT_S = 6, 0.1
"""Largest number of tries to create an object if there are conflicts; and seconds to wait after the first
try. Later waits are longer."""


@contextmanager
def open_store(place: str) -> Iterator[Store]:
    """Open the store in a folder, or at the URL of a prefix, until the end of the block.

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
    """A store below a prefix in an object storage.

    A record is created by a conditional request, which fails if the object exists. Output is first written to
    a folder of this machine, because objects can be stored only as a whole.
    """

    place: str
    """URL of the prefix, without a slash at its end."""
    scratch_folder: Path

    def check(self) -> None:
        """Check the access by listing the objects of the prefix; raise ConfigError if the storage refuses."""
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
        """Check that an object can be created, and only once; raise ConfigError if not."""
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
        _unlink(self.scratch_folder / name)
        with suppress(FileNotFoundError), explained(self._url(name)):
            self._filesystem.rm_file(self._url(name))

    @property
    def _filesystem(self) -> Any:
        return open_filesystem(self.place)

    def _url(self, name: str) -> str:
        return f"{self.place}/{name}"

    def _create(self, name: str, content: bytes, times: int = CREATE_TIMES) -> None:
        """Create an object; raise FileExistsError if it exists, and another OSError if the storage fails."""
        try:
            with explained(self._url(name)):
                self._filesystem.pipe_file(self._url(name), content, mode="create")
        except OSError as error:
            if error_code(error) not in CONFLICT or times == 1:
                raise
            time.sleep(WAIT_S * (1 + CREATE_TIMES - times))
            self._create(name, content, times - 1)

    def _holds(self, name: str, content: bytes) -> bool:
        """Whether an object has this content. If so, this process created it, because records of other
        attempts differ."""
        with self.open(name) as stream:
            return stream.read(len(content) + 1) == content

    def _write_error(self, name: str, error: OSError) -> OutputError:
        message = f"cannot be written: {error.strerror or error}; repair this and --resume"
        return OutputError(message, file=self._url(name))


def _written_s(info: dict[str, Any]) -> float:
    """The time at which an object was written, in seconds since 1970; each storage has another field."""
    written = info.get("LastModified") or info.get("mtime") or info.get("updated")
    if isinstance(written, str):
        written = datetime.fromisoformat(written)
    return written.timestamp() if isinstance(written, datetime) else datetime.now(UTC).timestamp()
