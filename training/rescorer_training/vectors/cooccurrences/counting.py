"""Count co-occurrences within a symmetric window (Pennington, Socher & Manning 2014; Levy et al. 2015)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.progress import track
from rescorer_training.vectors.cooccurrences.cells import merge_runs, sum_cells, write_cells
from rescorer_training.vectors.encoded_text import EncodedText
from rescorer_training.vectors.full_disk import FEWER_PAIRS, report_full_disk

MAX_WINDOW = 100
MIN_MEMORY_MB = 16
BYTES_PER_PAIR = 80
"""Memory that counting a block takes per pair of words, with its temporary arrays."""
MAX_BLOCK_IDS = 4_000_000


def count_cooccurrences(
    text: EncodedText, output: Path, *, window: int, by_distance: bool, memory_mb: int
) -> int:
    """Count the pairs of words at most ``window`` words apart in a sentence, and write the cells to a file.

    Rare words, which are not in the vocabulary, are left out before distances are measured, as in the
    original program.

    Args:
        output: file to write; see ``cells``. Temporary files are made in its folder.
        by_distance: a pair at distance d counts 1/d (GloVe) rather than 1 (PPMI).
        memory_mb: memory to use at most, apart from the vocabulary.

    Returns:
        Number of cells, of which each stands for X_ij and X_ji.

    Raises:
        ConfigError: the window or the memory is out of range, or no two words occur together.
        ScoringError: the disk is full.
    """
    check_window(window)
    check_memory(memory_mb)
    memory_bytes = memory_mb << 20
    n_cells = 0
    with (
        report_full_disk(output.parent, "co-occurrences", FEWER_PAIRS),
        tempfile.TemporaryDirectory(dir=output.parent) as folder,
    ):
        runs = []
        for number, cells in enumerate(_count_blocks(text, window, by_distance, memory_bytes)):
            runs.append(Path(folder) / f"{number}.cells")
            write_cells(runs[-1], cells)
        partial = Path(folder) / output.name
        with open(partial, "wb") as stream:
            for cells in merge_runs(runs, memory_bytes):
                stream.write(cells.view(np.uint8).data)
                n_cells += len(cells)
        if not n_cells:
            raise ConfigError(
                "no two words of the vocabulary occur in the same sentence: give more text, one sentence per "
                "line, or a lower --min-count"
            )
        partial.replace(output)
    return n_cells


def check_window(window: int) -> None:
    """Raise ConfigError if a window is out of range."""
    if not 1 <= window <= MAX_WINDOW:
        raise ConfigError(f"window: expected 1 to {MAX_WINDOW} words, got {window}")


def check_memory(memory_mb: int) -> None:
    """Raise ConfigError if the memory is too small to count in."""
    if memory_mb < MIN_MEMORY_MB:
        raise ConfigError(f"memory-mb: expected at least {MIN_MEMORY_MB}, got {memory_mb}")


def _count_blocks(
    text: EncodedText, window: int, by_distance: bool, memory_bytes: int
) -> Iterator[np.ndarray]:
    """Yield the sorted cells of consecutive blocks of the text, each of which fits into the memory."""
    size = max(1, min(MAX_BLOCK_IDS, memory_bytes // (BYTES_PER_PAIR * (window + 1))))
    previous = np.empty(0, dtype=np.int64)
    with track("counting co-occurrences", "words", len(text.ids)) as task:
        for begin in range(0, len(text.ids), size):
            block = np.asarray(text.ids[begin : begin + size], dtype=np.int64)
            task.advance(len(block))
            block = block[block <= text.sentence_end]
            n_previous = len(previous)
            block = np.concatenate([previous, block])
            if len(cells := count_block(block, n_previous, text.sentence_end, window, by_distance)):
                yield cells
            previous = block[-window:]


def count_block(
    ids: np.ndarray, n_previous: int, sentence_end: int, window: int, by_distance: bool
) -> np.ndarray:
    """Count the pairs of which the second word is in a block.

    Args:
        ids: (n,) int64: the last words before the block, at most ``window``, then the block.
        n_previous: number of words before the block.
        sentence_end: number of words V, which is the id of a sentence's end.

    Returns:
        Cells in ascending order.
    """
    sentences = np.cumsum(ids == sentence_end)
    pairs = []
    for distance in range(1, min(window, len(ids) - 1) + 1):
        first = max(0, n_previous - distance)
        left, right = ids[first:-distance], ids[first + distance :]
        together = sentences[first:-distance] == sentences[first + distance :]
        together &= left != sentence_end
        left, right = left[together], right[together]
        # the distance is part of the number, so that sorting plain numbers is enough
        keys = np.minimum(left, right) * sentence_end + np.maximum(left, right)
        pairs.append(keys * window + (distance - 1))
    numbers = np.concatenate(pairs) if pairs else np.empty(0, dtype=np.int64)
    pairs.clear()
    numbers.sort()
    keys, distances = np.divmod(numbers, window)
    del numbers
    weights = 1.0 / (distances + 1) if by_distance else np.ones(len(keys))
    return sum_cells(keys, weights)
