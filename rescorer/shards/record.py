"""Describe the record of a committed shard: the files with its output, their checksums, and what was done."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass

from rescorer.errors import FormatError
from rescorer.files.rescoring import FileSummary
from rescorer.shards.store import ATTEMPTS, RECORDS, Store, is_count, is_sha256

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
    """What a committed shard consists of."""

    shard: int
    plan: str
    """Fingerprint of the plan."""
    attempt: str
    data: DataFile
    rejects: DataFile | None
    """Rejected lists; None if there are none."""
    summary: FileSummary
    seconds: float
    """Time from start to commit, without loading the models."""
    worker: str
    """Machine and process that committed it."""

    def encode(self) -> bytes:
        """The record as a line of JSON that ends with a checksum of the rest."""
        body = json.dumps(asdict(self))
        return f'{body[:-1]}, "sha256": "{_checksum(body)}"}}\n'.encode()


def record_name(shard: int) -> str:
    """Name of a shard's record in its store."""
    return f"{RECORDS}/{shard:0{NAME_DIGITS}}.json"


def shard_of_record(name: str) -> int | None:
    """The shard that a record's name says; None if it is not the name of a record."""
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
    """Whether counts are counts, and files are those of an attempt at the shard: no others are ever read."""
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
