"""Owns the way from text files to word ids: reading (plain or gzip), counting words, encoding once.

One sentence a line. Text passes through the same normaliser as lists and references do; a line without
canonical words is no sentence and is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rescorer.errors import FormatError
from rescorer.formats import source
from rescorer.text import Normaliser

FLUSH_IDS = 4_000_000
"""Ids held in memory while a corpus is encoded to disk (16 MB)."""


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text file, read as lists are: gzip or plain, UTF-8.

    Raises:
        FormatError: the file is missing, damaged or not UTF-8; names the file and the line.
    """
    for _, line in source.read_lines(path):
        if isinstance(line, FormatError):
            raise line
        yield line


def sentences(paths: Sequence[Path], normaliser: Normaliser, progress: str = "") -> Iterator[tuple[str, ...]]:
    """Canonical words of each sentence; ``progress`` names the bar that is shown, empty for none."""
    with tqdm(
        desc=progress, unit=" lines", unit_scale=True, disable=None if progress else True, leave=False
    ) as bar:
        for path in paths:
            for number, line in enumerate(read_lines(path), start=1):
                if number % 10_000 == 0:
                    bar.update(10_000)
                words = normaliser.words(line)
                if words:
                    yield words


def count_words(
    paths: Sequence[Path], normaliser: Normaliser, progress: str = "counting words"
) -> Counter[str]:
    """How often each canonical word occurs."""
    counts: Counter[str] = Counter()
    for words in sentences(paths, normaliser, progress):
        counts.update(words)
    return counts


def encode(
    paths: Sequence[Path],
    normaliser: Normaliser,
    ids: Mapping[str, int],
    *,
    unknown: int,
    end: int,
    to: Path | None = None,
    progress: str = "encoding",
) -> np.ndarray:
    """Word ids of the whole text, flat, every sentence closed by ``end``.

    Args:
        ids: id of each known word; others become ``unknown``.
        to: write int32 ids to this file and map it into memory; None keeps them in memory.

    Returns:
        (n_words + n_sentences,) int32.

    Raises:
        FormatError: a file cannot be read, or there is no word in any of them.
    """
    chunks: list[np.ndarray] = []
    buffer: list[int] = []
    stream = open(to, "wb") if to is not None else None  # noqa: SIM115 (closed below)
    look_up = ids.get

    def flush() -> None:
        block = np.array(buffer, dtype=np.int32)
        buffer.clear()
        if stream is None:
            chunks.append(block)
        else:
            stream.write(block.tobytes())

    try:
        for words in sentences(paths, normaliser, progress):
            buffer.extend([look_up(word, unknown) for word in words])
            buffer.append(end)
            if len(buffer) >= FLUSH_IDS:
                flush()
        flush()
    finally:
        if stream is not None:
            stream.close()
    encoded = np.concatenate(chunks) if to is None else read_encoded(to)
    if not len(encoded):
        raise FormatError("no words in the text", file=", ".join(str(path) for path in paths))
    return encoded


def read_encoded(path: Path) -> np.ndarray:
    """Maps ids written by ``encode`` into memory."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.int32)
    return np.memmap(path, dtype=np.int32, mode="r")
