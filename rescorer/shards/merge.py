"""Join the output of all shards in the order of the input, verified while it is copied."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rescorer.errors import ConfigError, FormatError
from rescorer.files.rescoring import FileSummary
from rescorer.formats.io.targets import remove_file
from rescorer.formats.io.text_io import open_binary_output
from rescorer.shards.committed import how_to_mend
from rescorer.shards.inspection import Status, read_status
from rescorer.shards.planning.inputs import BLOCK_BYTES
from rescorer.shards.record import DataFile
from rescorer.shards.store import Store

MAX_NAMED = 5
"""Largest number of missing shards that an error names."""


def merge(
    store: Store, output: str, rejects: Path | None, on_shard: Callable[[], object] = lambda: None
) -> FileSummary:
    """Write the output of all shards to one file, and all rejected lists to another.

    The output replaces an earlier file only when it is complete.

    Args:
        output: file, compressed if its name ends with ``.gz``; ``-`` is standard output.
        rejects: file of rejected lists, removed if there are none; None: they are left out.
        on_shard: called after each shard.

    Raises:
        ConfigError: shards are missing.
        FormatError: a record or a file was changed, or the output cannot be written.
    """
    status = read_status(store)
    _check_complete(status)
    with open_binary_output(output) as stream:
        for index in range(len(status.plan.shards)):
            for block in _read_verified(store, index, status.records[index].data):
                stream.write(block)
            on_shard()
    if rejects is not None:
        _merge_rejects(store, status, rejects)
    return status.summary


@dataclass(frozen=True, slots=True)
class Outputs:
    """The output of all shards."""

    format: str
    """Name of its format."""
    names: tuple[str, ...]
    """Names of the files, in the order of the input."""
    summary: FileSummary


def find_outputs(store: Store) -> Outputs:
    """Find the output of all shards, to read it without a merge.

    Raises:
        ConfigError: shards are missing.
        FormatError: a record or a file was changed.
    """
    status = read_status(store)
    _check_complete(status)
    records = [status.records[index] for index in range(len(status.plan.shards))]
    names = tuple(f"{store.place}/{record.data.name}" for record in records)
    format_ = str(status.plan.answers["options"]["to"]).partition(":")[0]
    return Outputs(format_, names, status.summary)


def _merge_rejects(store: Store, status: Status, target: Path) -> None:
    if not any(record.rejects for record in status.records.values()):
        remove_file(target)  # left by an earlier run
        return
    with open_binary_output(target) as stream:
        for index in range(len(status.plan.shards)):
            if file := status.records[index].rejects:
                for block in _read_verified(store, index, file):
                    stream.write(block)


def _check_complete(status: Status) -> None:
    if status.damaged:
        raise FormatError(status.damaged[0])
    if missing := status.missing:
        names = ", ".join(map(str, missing[:MAX_NAMED])) + (", …" if len(missing) > MAX_NAMED else "")
        raise ConfigError(
            f"{len(missing):,} of {len(status.plan.shards):,} shards are not committed: {names}; run them "
            "first, with `rescorer rescore … --resume`"
        )


def _read_verified(store: Store, index: int, file: DataFile) -> Iterator[bytes]:
    """Yield the blocks of a file; raise FormatError at its end if it is not what its record says."""
    place = f"{store.place}/{file.name}"
    try:
        stream = store.open(file.name)
    except FileNotFoundError:
        raise FormatError(f"is missing; {how_to_mend(store, index)}", file=place) from None
    digest, n_bytes = hashlib.sha256(), 0
    with stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            n_bytes += len(block)
            yield block
    if (n_bytes, digest.hexdigest()) != (file.n_bytes, file.sha256):
        message = f"was changed since shard {index} was committed"
        raise FormatError(f"{message}; {how_to_mend(store, index)}", file=place)
