"""Owns the way from text files to word ids: reading (plain or gzip), counting words, numbering and encoding.

One sentence a line. Text passes through the same normaliser as lists and references do; a line without
canonical words is no sentence and is left out.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rescorer.errors import FormatError
from rescorer.formats.io import text_io
from rescorer.text import Normaliser

FLUSH_IDS = 4_000_000
"""Ids held in memory while a corpus is encoded to disk (16 MB)."""
SENTENCE_END = 0
"""What ``number_words`` closes every sentence with."""


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text file, read as lists are: gzip or plain, UTF-8.

    Raises:
        FormatError: the file is missing, damaged or not UTF-8; names the file and the line.
    """
    for _, line in text_io.read_lines(path):
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


def number_words(
    paths: Sequence[Path], normaliser: Normaliser, to: Path, progress: str = "reading"
) -> tuple[list[str], list[int]]:
    """Numbers words from 1 on as they first occur, and writes the whole text as these numbers, flat int32,
    every sentence closed by 0. Counting, choosing a vocabulary and ``renumber`` then need no second reading.

    Returns:
        The words by number - 1; how many sentences each path has.

    Raises:
        FormatError: a file cannot be read, or there is no word in one of them.
    """
    numbers: defaultdict[str, int] = defaultdict(itertools.count(SENTENCE_END + 1).__next__)
    n_sentences = [0] * len(paths)

    def numbered() -> Iterator[Iterable[int]]:
        for place, path in enumerate(paths):
            for words in sentences([path], normaliser, progress):
                n_sentences[place] += 1
                yield itertools.chain(map(numbers.__getitem__, words), (SENTENCE_END,))
            if not n_sentences[place]:
                raise FormatError("no words in the text", file=str(path))

    with open(to, "wb") as stream:
        buffer: list[int] = []
        for ids in numbered():
            buffer.extend(ids)
            if len(buffer) >= FLUSH_IDS:
                stream.write(np.array(buffer, dtype=np.int32).tobytes())
                buffer.clear()
        stream.write(np.array(buffer, dtype=np.int32).tobytes())
    return list(numbers), n_sentences


def blocks(ids: np.ndarray) -> Iterator[np.ndarray]:
    """A long array by parts, so that what is computed from it is never as long."""
    for begin in range(0, len(ids), FLUSH_IDS):
        yield ids[begin : begin + FLUSH_IDS]


def count_ids(ids: np.ndarray, n: int) -> np.ndarray:
    """How often each of the ids 0 … n-1 occurs, (n,) int64."""
    counts = np.zeros(n, dtype=np.int64)
    for block in blocks(ids):
        counts += np.bincount(block, minlength=n)
    return counts


def renumber(path: Path, new_ids: np.ndarray) -> None:
    """Replaces each id i of an encoded text on disk by ``new_ids[i]``."""
    ids = np.memmap(path, dtype=np.int32, mode="r+")
    for block in blocks(ids):
        block[:] = new_ids[block]
    ids.flush()


def read_encoded(path: Path) -> np.ndarray:
    """Maps ids written by ``encode`` into memory."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.int32)
    return np.memmap(path, dtype=np.int32, mode="r")
