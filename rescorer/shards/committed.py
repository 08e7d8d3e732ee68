"""Say which shards are committed: their records can be read, and the files that these name are there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rescorer.errors import FormatError
from rescorer.shards.record import Record, read_record, record_name
from rescorer.shards.store import ATTEMPTS, Store

READERS = 16
"""Number of records that are read at a time: an object storage takes long to answer, but answers many."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What the records of some shards say."""

    records: dict[int, Record]
    """Records of the committed shards."""
    damaged: dict[int, FormatError]
    """What is wrong with the other records. Such a shard is not committed, nor can it be while it has this
    record, which nothing replaces: the files that it names may be the only ones that are intact."""


def read_committed(store: Store, fingerprint: str, shards: Sequence[int]) -> Committed:
    """Read the records of shards; those without a record are neither committed nor damaged.

    Files are compared by their sizes; ``verify`` and ``merge`` read them, and compare their hashes.

    Args:
        fingerprint: that of the plan, from ``read_plan``.

    Raises:
        FormatError: the storage cannot be asked.
    """

    def read(shard: int) -> Record | FormatError | None:
        try:
            return read_record(store, shard, fingerprint)
        except FormatError as error:
            return error

    with ThreadPoolExecutor(READERS) as readers:
        found = dict(zip(shards, readers.map(read, shards), strict=True))
    records = {shard: record for shard, record in found.items() if isinstance(record, Record)}
    damaged = {shard: error for shard, error in found.items() if isinstance(error, FormatError)}
    sizes = {file.name: file.n_bytes for file in store.list_files(ATTEMPTS)} if records else {}
    for shard, record in list(records.items()):
        if (error := _compare_sizes(store, record, sizes)) is not None:
            damaged[shard] = error
            del records[shard]
    return Committed(records, damaged)


def _compare_sizes(store: Store, record: Record, sizes: dict[str, int]) -> FormatError | None:
    """The error of a file that is missing, or has another size than its record says."""
    for file in filter(None, (record.data, record.rejects)):
        if sizes.get(file.name) == file.n_bytes:
            continue
        try:
            with store.open(file.name) as stream:  # the list of files may be older than the record
                n_bytes = stream.seek(0, os.SEEK_END)
        except FileNotFoundError:
            wrong = "is missing"
        except FormatError as error:
            return error
        else:
            wrong = f"has {n_bytes:,} bytes, its record {file.n_bytes:,}" if n_bytes != file.n_bytes else ""
        if wrong:
            message = f"{wrong}; {how_to_mend(store, record.shard)}"
            return FormatError(message, file=f"{store.place}/{file.name}")
    return None


def how_to_mend(store: Store, shard: int) -> str:
    """What to do if a file of a committed shard is not what its record says."""
    return f"restore it, or remove {store.place}/{record_name(shard)} and --resume"
