"""Count co-occurrences of words with bounded memory, and compute word vectors from counts by decomposition.

The matrix X of co-occurrences is symmetric. A file has one cell per pair of words i ≤ j, with the key i·V +
j, and is sorted by key. Memory is bounded: blocks of the text are counted one by one into sorted files on
disk, which are then merged.

Vectors of PPMI co-occurrences (Levy, Goldberg & Dagan 2015) are the rows of U Σ^p, where U Σ Vᵀ ≈ M and
M_ij = max(0, ln P(i, j) / (P(i) P'(j)) - ln k). The probabilities P' of context words are smoothed: P'(j) ∝
count_j^α. The shift k corresponds to the number of negative samples of word2vec.

Vectors of latent semantic analysis (Deerwester et al. 1990) are the rows of U Σ for the matrix of words and
documents. A document is a few consecutive sentences. The entry for a word that occurs n times in a document
is ln(1 + n) g. The global weight of the word is g = 1 - H / ln N, where H is the entropy of the word's
occurrences over the N documents (Bellegarda 2000).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rescorer.errors import ConfigError
from rescorer.progress import track
from rescorer_training.progress import option
from rescorer_training.vectors.files import FEWER_PAIRS, WordVectors, report_full_disk
from rescorer_training.vectors.runs import EncodedText

if TYPE_CHECKING:
    from scipy.sparse import csr_array


CELL = np.dtype([("key", "<i8"), ("weight", "<f8")])
"""A cell: the key i·V + j of two words i ≤ j, and the total weight of their co-occurrences."""

COPIES_IN_MERGE = 5
"""Merging needs so many times the memory of the blocks that it reads, including temporary arrays."""


def sum_cells(keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Add up the weights of equal keys.

    Args:
        keys: (n,) int64 in ascending order.
        weights: (n,) float64.

    Returns:
        Cells with distinct keys in ascending order.
    """
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    cells = np.empty(len(starts), dtype=CELL)
    cells["key"] = keys[starts]
    cells["weight"] = np.add.reduceat(weights, starts) if len(starts) else 0
    return cells


def read_cells(path: Path, cells_per_block: int) -> Iterator[np.ndarray]:
    """Yield the cells of a file in blocks."""
    n_cells = path.stat().st_size // CELL.itemsize
    for first in range(0, n_cells, cells_per_block):
        yield np.fromfile(path, CELL, min(cells_per_block, n_cells - first), offset=first * CELL.itemsize)


def merge_runs(runs: Sequence[Path], memory_bytes: int) -> Iterator[np.ndarray]:
    """Merge sorted files of cells, adding up equal keys; yield cells in ascending order of distinct keys.

    Each file is read in blocks. Take the last keys of the blocks in memory: cells up to the smallest of these
    are complete, because no block on disk has such a key.
    """
    cells_per_block = max(1, memory_bytes // (COPIES_IN_MERGE * CELL.itemsize * max(1, len(runs))))
    streams = [read_cells(run, cells_per_block) for run in runs]
    blocks = [next(stream, None) for stream in streams]
    while any(block is not None for block in blocks):
        limit = min(block["key"][-1] for block in blocks if block is not None)
        complete = []
        for number, block in enumerate(blocks):
            if block is None:
                continue
            end = np.searchsorted(block["key"], limit, side="right")
            complete.append(block[:end])
            blocks[number] = block[end:] if end < len(block) else next(streams[number], None)
        cells = np.concatenate(complete)
        cells = cells[np.argsort(cells["key"], kind="stable")]
        yield sum_cells(cells["key"], cells["weight"])


CELLS_PER_BLOCK = 4_000_000


def mirror_cells(cells: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the entries X_ij and X_ji of cells: rows and columns (int32), and weights (float64).

    A pair of equal words counts twice, because each word is in the window of the other.
    """
    low, high = np.divmod(cells["key"], n_words)
    differ = low != high
    rows = np.concatenate([low, high[differ]]).astype(np.int32)
    columns = np.concatenate([high, low[differ]]).astype(np.int32)
    weights = np.concatenate([np.where(differ, 1.0, 2.0) * cells["weight"], cells["weight"][differ]])
    return rows, columns, weights


def load_matrix(path: Path, n_words: int) -> csr_array:
    """Load the cells of a file as a sparse matrix X, (V, V) float64."""
    from scipy.sparse import coo_array

    blocks = [mirror_cells(cells, n_words) for cells in read_cells(path, CELLS_PER_BLOCK)]
    rows, columns, weights = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return coo_array((weights, (rows, columns)), shape=(n_words, n_words)).tocsr()


MAX_WINDOW = 100
MIN_MEMORY_MB = 16
BYTES_PER_PAIR = 80
"""Bytes that counting needs per pair of words, including temporary arrays."""
MAX_BLOCK_IDS = 4_000_000


def count_cooccurrences(
    text: EncodedText, output: Path, *, window: int, by_distance: bool, memory_mb: int
) -> int:
    """Count pairs of words that are at most ``window`` words apart in a sentence, and write cells to a file.

    Rare words, which are not in the vocabulary, are left out before distances are measured, as in the
    original program of GloVe.

    Args:
        output: file of cells to write. Temporary files are made in its folder.
        by_distance: whether a pair at distance d counts 1/d (GloVe) or 1 (PPMI).
        memory_mb: maximum memory to use, not counting the vocabulary.

    Returns:
        Number of cells. Each stands for X_ij and X_ji.

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
            # on a full disk the error has its reason, which that of ``tofile`` lacks
            runs[-1].write_bytes(cells.view(np.uint8).data)
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
    """Yield the sorted cells of one block of the text after another. Blocks are as large as memory allows."""
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
    """Count the pairs whose second word is in a block.

    Args:
        ids: (n,) int64: at most ``window`` words before the block, then the words of the block.
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


EIGENVALUE_POWERS = (0.0, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class SvdOptions:
    """Options to count pairs of words, to weight their matrix and to decompose it; see the module docstring.

    Raises:
        ConfigError: a value is out of range.
    """

    dimensions: int = option(100, "Number of values per vector.")
    window: int = option(5, "Largest distance of two words that occur together, 1 to 100, within a sentence.")
    min_count: int = option(5, "Leave out words that occur less often.", min=1)
    shift: float = option(1.0, "Subtract the logarithm of this number, 1 or more, from every value.")
    smoothing: float = option(0.75, "Power of the counts of context words, up to 1; 1 for none.")
    power: float = option(0.5, "Power of the singular values in the vectors.", metavar="0|0.5|1")
    memory_mb: int = option(
        1024, "Memory in MB for counting and shuffling co-occurrences; what does not fit is sorted on disk."
    )
    seed: int = option(1, "Random seed.", min=0)

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ConfigError(f"dimensions: expected at least 1, got {self.dimensions}")
        if not 1 <= self.shift < np.inf:
            raise ConfigError(f"shift: expected a number of at least 1, got {self.shift:g}")
        if not 0 < self.smoothing <= 1:
            raise ConfigError(f"smoothing: expected a power above 0 and up to 1, got {self.smoothing:g}")
        if self.power not in EIGENVALUE_POWERS:
            raise ConfigError(f"power: expected 0, 0.5 or 1, got {self.power:g}")
        check_window(self.window)
        check_memory(self.memory_mb)


def compute_ppmi(counts: csr_array, shift: float = 1.0, smoothing: float = 0.75) -> csr_array:
    """Compute shifted positive pointwise mutual information, without storing zeros.

    Args:
        counts: (V, V) co-occurrences.

    Returns:
        (V, V) float64, natural logarithms.
    """
    from scipy.sparse import coo_array

    cells = counts.tocoo()
    rows, columns = cells.coords
    words = np.asarray(counts.sum(axis=1)).ravel()
    contexts = np.asarray(counts.sum(axis=0)).ravel() ** smoothing
    values = np.log(cells.data * contexts.sum()) - np.log(words[rows] * contexts[columns]) - np.log(shift)
    kept = values > 0
    return coo_array((values[kept], (rows[kept], columns[kept])), shape=counts.shape).tocsr()


def decompose(words: tuple[str, ...], counts: csr_array, options: SvdOptions) -> WordVectors:
    """Compute vectors from co-occurrences. The dimensions are ordered by falling singular value.

    Raises:
        ConfigError: there are not more words than dimensions, or no value is above 0 after the shift.
    """
    if options.dimensions >= len(words):
        raise ConfigError(
            f"dimensions: {options.dimensions} are too many for a vocabulary of {len(words):,} words; "
            f"expected at most {len(words) - 1:,}"
        )
    ppmi = compute_ppmi(counts, options.shift, options.smoothing)
    if not ppmi.nnz:
        raise ConfigError(
            "no two words occur together more often than by chance: give more text, or a lower --shift"
        )
    return WordVectors(words, compute_singular_vectors(ppmi, options.dimensions, options.power, options.seed))


def compute_singular_vectors(matrix: csr_array, n: int, power: float, seed: int) -> np.ndarray:
    """Compute U Σ^p for a matrix ≈ U Σ Vᵀ. The columns are ordered by falling singular value.

    The sign of a column is such that its largest value is positive.

    Args:
        matrix: (V, C).
        n: number of singular values, less than V and C.

    Returns:
        (V, n) float32.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    # U and Σ² are eigenvectors and eigenvalues of M Mᵀ. svds would also make a dense (C, n) matrix, which has
    # gigabytes where each sentence is a column.
    n_rows, columns = matrix.shape[0], matrix.T
    product = LinearOperator((n_rows, n_rows), matvec=lambda x: matrix @ (columns @ x), dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(n_rows)
    squares, left = eigsh(product, k=n, v0=start)
    order = np.argsort(-squares)
    values, left = np.sqrt(np.maximum(squares[order], 0)), left[:, order]
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])
    return np.asarray((left * signs * values**power).astype(np.float32))


def analyse(text: EncodedText, dimensions: int, document_sentences: int = 1, seed: int = 1) -> WordVectors:
    """Compute vectors by latent semantic analysis. The dimensions are ordered by falling singular value.

    Raises:
        ConfigError: a number is out of range, or the text has no more words or documents than dimensions.
    """
    if dimensions < 1 or document_sentences < 1:
        name = "dimensions" if dimensions < 1 else "document sentences"
        raise ConfigError(f"{name}: expected at least 1, got {min(dimensions, document_sentences)}")
    counts = count_documents(text, document_sentences)
    if dimensions >= min(counts.shape):
        raise ConfigError(
            f"dimensions: {dimensions} are too many for {counts.shape[0]:,} words in {counts.shape[1]:,} "
            f"documents; expected at most {min(counts.shape) - 1:,}"
        )
    vectors = compute_singular_vectors(weigh_entries(counts), dimensions, 1.0, seed)
    return WordVectors(text.words, vectors)


def count_documents(text: EncodedText, document_sentences: int) -> csr_array:
    """Count the words of each document: (V, documents) float64. Rare words are left out."""
    from scipy.sparse import coo_array

    ends = text.ids == text.sentence_end
    documents = (np.cumsum(ends) - ends) // document_sentences
    is_word = text.ids < text.sentence_end
    words, documents = text.ids[is_word], documents[is_word].astype(np.int32)
    shape = (len(text.words), int(documents[-1]) + 1)
    return coo_array((np.ones(len(words)), (words, documents)), shape=shape).tocsr()


def weigh_entries(counts: csr_array) -> csr_array:
    """Replace each count n by ln(1 + n) g, where g is the word's weight; see the module docstring."""
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    shares = counts.data / np.asarray(counts.sum(axis=1)).ravel()[rows]
    entropies = -np.bincount(rows, shares * np.log(shares), counts.shape[0])
    weights = 1 - entropies / np.log(max(counts.shape[1], 2))
    entries = np.log1p(counts.data) * weights[rows]
    return csr_array((entries, counts.indices, counts.indptr), shape=counts.shape)
