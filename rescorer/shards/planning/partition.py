"""Divide input files into shards in one pass, in memory that does not grow with the files.

Shards end where batches end, if scores depend on the batch by the last digits of float32 (see the decision on
batch invariance): then every division gives exactly the output of the undivided file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal

from rescorer.errors import ConfigError, InputError
from rescorer.files.rescoring import cut_batches
from rescorer.shards.planning.inputs import (
    LINE_FORMAT,
    ListSource,
    hash_all,
    is_compressed,
    measure,
    measure_all,
    scan_lines,
)
from rescorer.shards.planning.plan import MAX_SHARDS, InputFile, Part, Plan

Unit = Literal["shards", "lists"]


@dataclass(frozen=True, slots=True)
class Division:
    """How large shards are.

    Args:
        n: number of shards of about equal bytes, or number of lists of each shard.
        unit: what ``n`` counts.
        batch_words: words of a batch, if shards must end where batches end; None if any line will do.
    """

    n: int
    unit: Unit
    batch_words: int | None


@dataclass(slots=True)
class _Shards:
    """The shards so far, and the one that is being filled."""

    division: Division
    total_bytes: int
    closed: list[tuple[Part, ...]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    n_bytes: int = 0
    """Number of bytes of all parts so far."""
    n_lists: int = 0
    """Number of lists in the shard that is being filled."""

    def is_full(self, n_bytes: int, n_lists: int | None) -> bool:
        """Whether the shard ends after so many further bytes and lists."""
        if self.division.unit == "lists":
            return n_lists is None or self.n_lists + n_lists >= self.division.n
        goal = (len(self.closed) + 1) * self.total_bytes
        return (self.n_bytes + n_bytes) * self.division.n >= goal and len(self.closed) + 1 < self.division.n

    def add(self, part: Part) -> None:
        """Add a part, and close the shard if it is full."""
        full = self.is_full(part.end - part.start, part.lists)
        self.parts.append(part)
        self.n_bytes += part.end - part.start
        self.n_lists += part.lists or 0
        if full:
            self.close()
        if len(self.closed) > MAX_SHARDS:
            raise ConfigError(f"more than {MAX_SHARDS:,} shards; make them larger")

    def close(self) -> None:
        self.closed.append(tuple(self.parts))
        self.parts, self.n_lists = [], 0


def make_plan(
    names: list[str],
    source: ListSource,
    answers: Mapping[str, Any],
    division: Division,
    on_bytes: Callable[[int], object] = lambda n: None,
) -> Plan:
    """Read all input once, and divide it.

    Args:
        names: input files, from ``find_files``.
        answers: all besides the lists that answers depend on.
        on_bytes: called with the number of bytes that were read since the last call.

    Raises:
        InputError: a file cannot be read, or changed while it was read.
        ConfigError: there are too many shards.
    """
    if division.unit == "shards" and division.n > MAX_SHARDS:
        raise ConfigError(f"--shards {division.n}: at most {MAX_SHARDS:,}")
    sizes = measure_all(names)
    shards = _Shards(division, sum(sizes))
    files = []
    for index, (name, n_bytes) in enumerate(zip(names, sizes, strict=True)):
        divisible = source.may_divide and source.find_format(name) == LINE_FORMAT and not is_compressed(name)
        if divisible:
            header = source.find_header(name)
            for part in _divide_lines(index, name, n_bytes, source, shards, header, on_bytes):
                shards.add(part)
            files.append(InputFile(name, n_bytes, True, header))
        else:
            files.append(InputFile(name, n_bytes, False))
            shards.add(Part(index, 0, n_bytes, 1, None, hash_all(name)))
            on_bytes(n_bytes)
        if measure(name) != n_bytes:
            raise InputError(f"{name}: changed while it was read; plan when it is complete")
    if shards.parts or not shards.closed:
        shards.close()
    while division.unit == "shards" and len(shards.closed) < division.n:
        shards.close()
    return Plan(answers, tuple(files), tuple(shards.closed))


def _divide_lines(
    index: int,
    name: str,
    n_bytes: int,
    source: ListSource,
    shards: _Shards,
    header: str,
    on_bytes: Callable[[int], object],
) -> Iterator[Part]:
    """Yield the parts of a file, which end where a shard is full."""
    groups = _batch_sizes(source.read_file(name), shards.division.batch_words)
    digest, start, end, first_line, line = hashlib.sha256(), 0, 0, 1, 1
    lists, until, is_header, is_full = 0, next(groups, 0), bool(header), False
    for raw in scan_lines(name, n_bytes):
        if is_full and not raw.is_blank:
            yield Part(index, start, end, first_line, lists, digest.hexdigest())
            digest, start, first_line, lists, is_full = hashlib.sha256(), end, line, 0, False
        digest.update(raw.content)
        end += len(raw.content)
        on_bytes(len(raw.content))
        line += raw.ends
        if not raw.ends or raw.is_blank:
            continue
        if is_header:
            is_header = False
            continue
        lists += 1
        until -= 1
        if until == 0:
            until = next(groups, 0)
            is_full = shards.is_full(end - start, lists)
    if end > start:
        yield Part(index, start, end, first_line, lists, digest.hexdigest())


def _batch_sizes(lists: Any, batch_words: int | None) -> Iterator[int]:
    """Yield the number of lists of each batch; batches of one if they do not matter."""
    if batch_words is None:
        return repeat(1)
    return map(len, cut_batches(lists, batch_words))
