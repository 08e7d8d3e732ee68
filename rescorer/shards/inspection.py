"""Say what is committed, verify it, and delete what killed processes left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rescorer.errors import FormatError, InputError
from rescorer.files.rescoring import FileSummary
from rescorer.shards.committed import how_to_mend, read_committed
from rescorer.shards.planning.inputs import BLOCK_BYTES, hash_part
from rescorer.shards.planning.plan import Plan, read_plan
from rescorer.shards.record import DataFile, Record, record_name, shard_of_record
from rescorer.shards.store import ATTEMPT_NAME, ATTEMPTS, RECORDS, Store, StoredFile
from rescorer.shards.worker import add_summaries, hash_blocks


@dataclass(frozen=True, slots=True)
class Status:
    """How far a plan is."""

    plan: Plan
    records: dict[int, Record]
    """Records of the committed shards."""
    damaged: tuple[str, ...]
    """Why records cannot be read, or what is wrong with the files that they name."""
    leftovers: tuple[StoredFile, ...]
    """Files of attempts that no record names: of running processes, or left by killed ones, or those of
    damaged records."""

    @property
    def missing(self) -> list[int]:
        """Shards that are not committed."""
        return [index for index in range(len(self.plan.shards)) if index not in self.records]

    @property
    def summary(self) -> FileSummary:
        """Counts of all committed shards."""
        total = FileSummary()
        for record in self.records.values():
            total = add_summaries(total, record.summary)
        return total

    @property
    def seconds(self) -> float:
        """Time that committed shards took, one after another."""
        return sum(record.seconds for record in self.records.values())

    @property
    def n_bytes(self) -> int:
        """Size of the committed output, without rejects."""
        return sum(record.data.n_bytes for record in self.records.values())


def read_status(store: Store) -> Status:
    """Read the plan and all records.

    Raises:
        ConfigError: there is no plan.
        FormatError: the plan cannot be read.
    """
    plan, fingerprint = read_plan(store)
    attempts = store.list_files(ATTEMPTS)  # before the records, so that a commit in between is no leftover
    shards, damaged = [], []
    for file in store.list_files(RECORDS):
        shard = shard_of_record(file.name)
        if shard is None or shard >= len(plan.shards):
            damaged.append(f"{store.place}/{file.name}: is not the record of a planned shard; remove it")
        else:
            shards.append(shard)
    found = read_committed(store, fingerprint, shards)
    damaged += [f"shard {shard}: {error}" for shard, error in sorted(found.damaged.items())]
    named = {file.name for record in found.records.values() for file in (record.data, record.rejects) if file}
    leftovers = tuple(
        file for file in attempts if file.name not in named and ATTEMPT_NAME.fullmatch(file.name)
    )
    return Status(plan, found.records, tuple(damaged), leftovers)


def verify(
    store: Store, *, inputs: bool = False, on_shard: Callable[[], object] = lambda: None
) -> Iterator[str]:
    """Read all output again, and yield what is wrong or missing.

    Args:
        inputs: hash the input again too.
        on_shard: called after each shard.

    Raises:
        ConfigError, FormatError: as for ``read_status``.
    """
    status = read_status(store)
    yield from status.damaged
    for index in range(len(status.plan.shards)):
        record = status.records.get(index)
        if record is not None:
            yield from _verify_record(store, record, status.plan.count_lists(index))
        elif not store.exists(record_name(index)):
            yield f"shard {index}: not committed"
        if inputs:
            yield from _verify_inputs(status.plan, index)
        on_shard()


def _verify_record(store: Store, record: Record, n_planned: int | None) -> Iterator[str]:
    found = record.summary.lists + record.summary.rejected
    if n_planned is not None and found != n_planned:
        yield f"shard {record.shard}: the plan has {n_planned:,} lists, its record {found:,}"
    for file in filter(None, (record.data, record.rejects)):
        try:
            wrong = _compare(store, file)
        except OSError as error:
            wrong = error.strerror or str(error)
        if wrong:
            mend = how_to_mend(store, record.shard)
            yield f"shard {record.shard}: {store.place}/{file.name}: {wrong}; {mend}"


def _compare(store: Store, file: DataFile) -> str:
    """What differs between a file and its record; empty if nothing does."""
    with store.open(file.name) as stream:
        _, sha256 = hash_blocks(iter(lambda: stream.read(BLOCK_BYTES), b""))
    return "" if sha256 == file.sha256 else "was changed: its hash differs from its record's"


def _verify_inputs(plan: Plan, index: int) -> Iterator[str]:
    for part in plan.shards[index]:
        file = plan.files[part.file]
        place = f"shard {index}: {file.name}, bytes {part.start:,} to {part.end:,}"
        try:
            if hash_part(file, part) != part.sha256:
                yield f"{place}: changed since the plan"
        except (InputError, OSError) as error:
            yield f"{place}: {error}"


def clean(store: Store, min_age_s: float) -> list[StoredFile]:
    """Delete files of attempts that no record names and that nobody has written to lately.

    Args:
        min_age_s: seconds since the last write; a process that still runs writes after each batch.

    Returns:
        The deleted files.

    Raises:
        ConfigError, FormatError: as for ``read_status``; or a record cannot be read, so that its files are
            not known; or a file cannot be deleted.
    """
    status = read_status(store)
    if status.damaged:
        raise FormatError(f"nothing is deleted, since a record names files to keep: {status.damaged[0]}")
    deleted = [file for file in status.leftovers if file.age_s >= min_age_s]
    for file in deleted:
        try:
            store.delete(file.name)
        except OSError as error:
            place = f"{store.place}/{file.name}"
            raise FormatError(f"cannot be deleted: {error.strerror}", file=place) from None
    return deleted
