"""Draw parts of an archive at random, so that not all of it need be read to say what it holds."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

from rescorer.formats.io.text_io import max_line_bytes
from rescorer.shards.planning.inputs import (
    LINE_FORMAT,
    Lists,
    ListSource,
    RangeReader,
    is_compressed,
    measure_all,
    open_binary,
)
from rescorer.storage.urls import is_url

BLOCK_BYTES = 1 << 20
MIN_PARTS = 2
"""Smallest number of parts, since one part has no interval."""


@dataclass(frozen=True, slots=True)
class Extract:
    """Parts of an archive, each drawn with the same probability."""

    n_bytes: int
    """Bytes of the whole archive."""
    parts: Iterator[tuple[int, Lists]]
    """Bytes and lists of each part that was drawn, to be read once and in order."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some bytes of a file of plain JSON lines."""

    name: str
    start: int
    end: int


def draw_extract(names: Sequence[str], source: ListSource, max_bytes: int, seed: int) -> Extract:
    """Draw parts of about ``max_bytes`` bytes in all.

    Plain JSON lines are read in blocks, other files as a whole. All is read if it is not larger, and if files
    are of different kinds, since the bytes of one say nothing about the other.

    Args:
        names: input files, from ``find_files``.
    """
    sizes = measure_all(names)
    n_bytes, generator = sum(sizes), random.Random(seed)
    kinds = {_find_kind(name, source) for name in names} if n_bytes > max_bytes else set()
    if len(kinds) != 1:
        chosen = list(range(len(names)))
    elif kinds == {LINE_FORMAT}:
        blocks = _draw_blocks(names, sizes, max_bytes, generator)
        find_header = lru_cache(1)(source.find_header)
        return Extract(
            n_bytes,
            (
                (block.end - block.start, read_block(block, source, find_header(block.name)))
                for block in blocks
            ),
        )
    else:
        n_files = max(MIN_PARTS, max_bytes * len(names) // n_bytes)
        chosen = sorted(generator.sample(range(len(names)), min(len(names), n_files)))
    return Extract(n_bytes, ((sizes[index], source.read_file(names[index])) for index in chosen))


def _find_kind(name: str, source: ListSource) -> str:
    kind = source.find_format(name)
    is_file = is_url(name) or os.path.isfile(name)
    return f"compressed {kind}" if is_file and is_compressed(name) else kind


def _draw_blocks(
    names: Sequence[str], sizes: Sequence[int], max_bytes: int, generator: random.Random
) -> Iterator[Block]:
    """Draw blocks of all files, in the order of the archive."""
    counts = [-(-size // BLOCK_BYTES) for size in sizes]
    n_blocks = sum(counts)
    n_chosen = min(n_blocks, max(MIN_PARTS, max_bytes // BLOCK_BYTES))
    chosen = iter(sorted(generator.sample(range(n_blocks), n_chosen)))
    number, first, index = next(chosen, None), 0, 0
    while number is not None:
        while number >= first + counts[index]:
            first, index = first + counts[index], index + 1
        start = (number - first) * BLOCK_BYTES
        yield Block(names[index], start, min(start + BLOCK_BYTES, sizes[index]))
        number = next(chosen, None)


def read_block(block: Block, source: ListSource, header: str) -> Lists:
    """Read the lists whose lines begin in a block, so that each list belongs to one block."""
    with open_binary(block.name) as stream:
        begin, end = (_find_line(stream, place) for place in (block.start, block.end))
        stream.seek(begin)
        label = f"{block.name}, lines counted from 0 at byte {begin}" if begin else block.name
        lines = RangeReader(stream, label, end - begin)
        yield from source.read_lines(lines, 0 if begin else 1, header)  # type: ignore[arg-type]


def _find_line(stream: BinaryIO, place: int) -> int:
    """Find the first line that begins at a byte or after it; lines longer than the limit are cut."""
    if place:
        stream.seek(place - 1)
        stream.readline(max_line_bytes() + 1)
    return stream.tell() if place else 0
