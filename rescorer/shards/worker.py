"""Run one shard of a plan and commit it once: the primitive that every engine calls."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rescorer.bundle import Bundle
from rescorer.errors import BundleError, FormatError
from rescorer.files.rejects_file import RejectsFile
from rescorer.files.rescoring import BatchRescorer, FileSummary, LocalRescorer, rescore_lists
from rescorer.formats.io.targets import WRITE_ERRORS
from rescorer.formats.rescored import rescored_writer
from rescorer.shards.planning.inputs import BLOCK_BYTES, ListSource, open_part
from rescorer.shards.planning.plan import Plan
from rescorer.shards.record import NAME_DIGITS, DataFile, Record, read_record, record_name
from rescorer.shards.store import ATTEMPTS, Store, output_error

OnBatch = Callable[[int, FileSummary], object]


def keep(rescorer: BatchRescorer) -> BatchRescorer:
    """Return the rescorer itself."""
    return rescorer


@dataclass(frozen=True, slots=True)
class Job:
    """What a process needs besides the plan in order to run shards; it can be pickled.

    Args:
        load: loads the models; called once in each process.
        source: reads the lists.
        to: format of the output.
        arrange: decides the order in which the lists of a file are rescored; called for each part.
    """

    load: Callable[[], LocalRescorer]
    source: ListSource
    to: str
    arrange: Callable[[BatchRescorer], BatchRescorer] = keep


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """The label of a bundle, and the hashes of its files except weights, which are compared apart."""
    files = bundle.manifest["files"]
    return {
        "label": bundle.label,
        "files": {name: digest for name, digest in files.items() if not name.startswith("weights/")},
    }


def load_planned(plan: Plan, load: Callable[[], LocalRescorer]) -> LocalRescorer:
    """Load the models; raise BundleError if they are not those of the plan."""
    local = load()
    if describe_bundle(local.rescorer.bundle) != plan.answers["bundle"]:
        bundle = local.rescorer.bundle
        raise BundleError(f"{bundle.folder}: changed since the plan; restore it, or plan into another folder")
    return local


def run_shard(
    store: Store,
    plan: Plan,
    fingerprint: str,
    index: int,
    job: Job,
    rescorer: BatchRescorer,
    on_batch: OnBatch = lambda n_items, summary: None,
) -> tuple[Record, bool]:
    """Rescore a shard and commit it, unless it is committed; any number of processes may try.

    Args:
        fingerprint: that of the plan, from ``read_plan``.
        rescorer: has the models of the plan; see ``load_planned``.
        on_batch: called after each batch with its number of items and the summary of the shard so far.

    Returns:
        The shard's record, and whether this call committed it.

    Raises:
        InputError: the input has changed since the plan. Nothing is committed, and what was written is
            deleted.
        OutputError: the same for output that cannot be written.
    """
    if (record := read_record(store, index, fingerprint)) is not None:
        return record, False
    begin, attempt = time.monotonic(), secrets.token_hex(6)
    data = f"{ATTEMPTS}/{index:0{NAME_DIGITS}}.{attempt}.{job.to.partition(':')[0]}"
    rejects = f"{data}.rejects"
    try:
        summary = _write_output(store, plan, index, job, rescorer, (data, rejects), on_batch)
        files = [describe_file(store.scratch(name), name) for name in (data, rejects)]
        for file in filter(None, files):
            store.save(file.name)
    except BaseException as error:
        _discard(store, data, rejects)
        _raise_output_error(error, store.place)
        raise
    assert files[0] is not None  # a writer creates its file even if it writes no list
    seconds = round(time.monotonic() - begin, 3)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    record = Record(index, fingerprint, attempt, files[0], files[1], summary, seconds, worker)
    if store.create(record_name(index), record.encode()):
        return record, True
    _discard(store, data, rejects)
    committed = read_record(store, index, fingerprint)
    assert committed is not None  # the name was taken
    return committed, False


def _write_output(
    store: Store,
    plan: Plan,
    index: int,
    job: Job,
    rescorer: BatchRescorer,
    names: tuple[str, str],
    on_batch: OnBatch,
) -> FileSummary:
    data, rejects = map(store.scratch, names)
    total = FileSummary()

    def report(n_items: int, summary: FileSummary) -> None:
        on_batch(n_items, add_summaries(total, summary))

    with rescored_writer(job.to, data) as write, RejectsFile(rejects) as rejects_file:
        for part in plan.shards[index]:
            with open_part(plan.files[part.file], part, job.source) as lists:
                summary = rescore_lists(job.arrange(rescorer), lists, write, rejects_file, on_batch=report)
            total = add_summaries(total, summary)
    return total


def add_summaries(first: FileSummary, second: FileSummary) -> FileSummary:
    """Add the counts of two summaries."""
    both = first.to_dict(), second.to_dict()
    return replace(first, **{name: both[0][name] + both[1][name] for name in both[0]})


def describe_file(path: Path, name: str) -> DataFile | None:
    """Size and hash of a written file; None if there is none."""
    try:
        with open(path, "rb") as stream:
            return DataFile(name, *hash_blocks(iter(lambda: stream.read(BLOCK_BYTES), b"")))
    except FileNotFoundError:
        return None


def hash_blocks(blocks: Iterable[bytes]) -> tuple[int, str]:
    """The total length of blocks, and the SHA-256 of all of them together."""
    digest, n_bytes = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        n_bytes += len(block)
    return n_bytes, digest.hexdigest()


def _raise_output_error(error: BaseException, place: str) -> None:
    """Raise OutputError if a file could not be written for want of room."""
    cause = error.__context__ if isinstance(error, FormatError) else error
    if isinstance(cause, OSError) and cause.errno in WRITE_ERRORS:
        raise output_error(place, cause) from None


def _discard(store: Store, *names: str) -> None:
    """Delete the files of an attempt, which gives their space back."""
    for name in names:
        with suppress(OSError):
            store.delete(name)
