"""Train GloVe vectors (Pennington, Socher & Manning 2014) from co-occurrence cells.

Cells are shuffled once on disk, then trained on in blocks by AdaGrad, in one or several threads.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, ScoringError
from rescorer.progress import track
from rescorer.text import Normaliser
from rescorer_training.progress import option
from rescorer_training.vectors import counts, runs
from rescorer_training.vectors.files import FEWER_PAIRS, WordVectors, report_full_disk


@dataclass(frozen=True, slots=True)
class GloveOptions:
    """Training options, which are saved with the run. A resumed run must have the same options.

    Apart from 100 dimensions, the defaults are those of the original program's demo for 17 million words.

    Raises:
        ConfigError: a value is out of range.
    """

    dimensions: int = option(100, "Number of values per vector.")
    window: int = option(
        15, "Largest distance of two words that occur together, 1 to 100, within a sentence."
    )
    min_count: int = option(5, "Leave out words that occur less often.")
    epochs: int = option(15, "Number of passes over all pairs.")
    learning_rate: float = option(0.05, "Learning rate of AdaGrad; biases learn at a rate of 1.")
    x_max: float = option(
        10.0,
        "Co-occurrence from which on a pair has the full weight; rarer pairs weigh less. Take 100 for "
        "billions of words.",
    )
    alpha: float = option(0.75, "Power of the weights: a pair weighs (co-occurrence / x-max)^alpha.")
    block_cells: int = option(
        1024, "Number of pairs per step. With 1, each pair sees the vectors after the last one."
    )
    seed: int = option(1, "Random seed.")

    def __post_init__(self) -> None:
        counts.check_window(self.window)
        for name in ("dimensions", "min_count", "epochs", "block_cells"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', '-')}: expected at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "x_max", "alpha"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name.replace('_', '-')}: expected a positive number, got {value:g}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, got {self.seed}")


ENTRY = np.dtype([("row", "<i4"), ("column", "<i4"), ("weight", "<f4")])
"""An entry X_ij of the matrix of co-occurrences."""
ENTRIES_PER_BLOCK = 1 << 20


def open_entries(path: Path, n_words: int, n_entries: int) -> np.ndarray:
    """Map a file of entries into memory, after checking all of them.

    Args:
        n_words: size of the vocabulary.
        n_entries: number of entries that were written to the file.

    Raises:
        BundleError: the file is missing, has another size, or has an invalid entry. The error names the first
            invalid entry.
    """
    advice = "restore a copy of it, or start the run again in another folder"
    try:
        n_bytes = path.stat().st_size
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}; {advice}") from None
    if n_bytes != n_entries * ENTRY.itemsize or not n_entries:
        raise BundleError(
            f"{path} is damaged: it has {n_bytes:,} bytes, expected {n_entries:,} pairs of {ENTRY.itemsize} "
            f"bytes; {advice}"
        )
    entries = np.memmap(path, ENTRY, mode="r")
    with track("checking co-occurrences", "pairs", n_entries) as task:
        for begin in range(0, n_entries, ENTRIES_PER_BLOCK):
            block = entries[begin : begin + ENTRIES_PER_BLOCK]
            rows, columns, weights = block["row"], block["column"], block["weight"]
            words = (np.minimum(rows, columns) >= 0) & (np.maximum(rows, columns) < n_words)
            wrong = np.flatnonzero(~(words & (weights > 0) & np.isfinite(weights)))
            if len(wrong):
                row, column, weight = block[wrong[0]].tolist()
                raise BundleError(
                    f"{path} is damaged: pair {begin + wrong[0] + 1:,} is words {row} and {column} with the "
                    f"co-occurrence {weight:g}; expected words 0 to {n_words - 1:,} and a positive number; "
                    f"{advice}"
                )
            task.advance(len(block))
    return entries


BYTES_PER_ENTRY = 64
"""Bytes that shuffling needs per entry, including temporary arrays."""


def shuffle_entries(cells: Path, output: Path, *, n_words: int, memory_mb: int, seed: int) -> int:
    """Write the entries of a symmetric matrix in random order.

    Each entry goes to one of several parts at random. The parts are then shuffled in memory one by one.

    Args:
        cells: file of co-occurrence cells.

    Returns:
        Number of entries.

    Raises:
        ScoringError: the disk is full.
    """
    random = np.random.default_rng(seed)
    capacity = max(1, (memory_mb << 20) // BYTES_PER_ENTRY)
    n_parts = 1 + 4 * (cells.stat().st_size // counts.CELL.itemsize) // capacity
    n_entries = 0
    with (
        report_full_disk(output.parent, "co-occurrences", FEWER_PAIRS),
        tempfile.TemporaryDirectory(dir=output.parent) as folder,
    ):
        parts = [Path(folder) / f"{number}.entries" for number in range(n_parts)]
        for block in counts.read_cells(cells, max(1, capacity // 2)):
            entries = _make_entries(block, n_words)
            entries = entries[random.permutation(len(entries))]
            for part, piece in zip(parts, np.array_split(entries, n_parts), strict=True):
                with open(part, "ab") as stream:
                    stream.write(piece.view(np.uint8).data)
        partial = Path(folder) / output.name
        with open(partial, "wb") as stream:
            for part in parts:
                entries = np.fromfile(part, ENTRY)
                stream.write(entries[random.permutation(len(entries))].view(np.uint8).data)
                n_entries += len(entries)
        partial.replace(output)
    return n_entries


def _make_entries(cells: np.ndarray, n_words: int) -> np.ndarray:
    # a function, so that the arrays of mirrored cells do not stay in memory
    rows, columns, weights = counts.mirror_cells(cells, n_words)
    entries = np.empty(len(rows), dtype=ENTRY)
    entries["row"], entries["column"], entries["weight"] = rows, columns, weights
    return entries


MAX_GRADIENT = 100.0
"""Components of a vector's gradient are clipped to ± this value, as in the original program."""


@dataclass
class GloveParameters:
    """Vectors and biases of words and of context words, and AdaGrad's sums of squared steps.

    Word i has row i, context word j row V + j.
    """

    vectors: Tensor
    """(2V, D)."""
    biases: Tensor
    """(2V,)."""
    vector_squares: Tensor
    """(2V, D)."""
    bias_squares: Tensor
    """(2V,)."""

    @classmethod
    def initialise(cls, n_words: int, dimensions: int, seed: int) -> GloveParameters:
        """Draw uniform values in ±0.5 / D; sums of squares start at 1, as in the original program."""
        random = torch.Generator().manual_seed(seed)
        values = (torch.rand(2 * n_words, dimensions + 1, generator=random) - 0.5) / dimensions
        vectors, biases = values[:, :-1].contiguous(), values[:, -1].contiguous()
        return cls(vectors, biases, torch.ones_like(vectors), torch.ones_like(biases))

    @staticmethod
    def shapes(n_words: int, dimensions: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by name."""
        rows = 2 * n_words
        wide, narrow = (rows, dimensions), (rows,)
        return {"vectors": wide, "biases": narrow, "vector_squares": wide, "bias_squares": narrow}

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def train_block(
    parameters: GloveParameters, rows: Tensor, columns: Tensor, targets: Tensor, weights: Tensor, rate: float
) -> float:
    """Take one AdaGrad step with a block of entries. The loss is Σ f(x) (w·c + b + b' - ln x)² / 2.

    As in the original program (version 1.2 and later), gradients of vectors are clipped and then multiplied
    by the learning rate. Biases move at a rate of 1, because they have to grow to the logarithms of counts.

    The original program handles entries one by one. Here, all gradients of a block are computed with the
    parameters before the block. With one entry per block, both are the same.

    Args:
        rows: (n,) int64 rows of words.
        columns: (n,) int64 rows of context words, V … 2V - 1.
        targets: (n,) ln x.
        weights: (n,) f(x).

    Returns:
        The loss of the block before the step.
    """
    both, n = torch.cat([rows, columns]), len(rows)
    vectors = parameters.vectors.index_select(0, both)
    biases = parameters.biases.index_select(0, both)
    differences = (vectors[:n] * vectors[n:]).sum(1) + biases[:n] + biases[n:] - targets
    errors = weights * differences
    gradients = torch.cat([vectors[n:], vectors[:n]]).mul_(errors.repeat(2)[:, None])
    gradients.clamp_(-MAX_GRADIENT, MAX_GRADIENT)
    _step(parameters.vectors, parameters.vector_squares, both, gradients.mul_(rate))
    _step(parameters.biases[:, None], parameters.bias_squares[:, None], both, errors.repeat(2)[:, None])
    return float(torch.dot(errors, differences)) / 2


def _step(values: Tensor, squares: Tensor, rows: Tensor, steps: Tensor) -> None:
    """Take AdaGrad steps: scale steps by sums of squares, move values by them, and update the sums.

    A step is divided by the root of the sum of squares and subtracted from its values. The sum for a step has
    the squares of all steps before the block, as in the original program, and of all other steps of the same
    row in the block. Without the latter, the steps of a frequent word would add up to one far too long.
    """
    index = rows[:, None].expand(-1, values.shape[1])
    own = steps.square()
    # with an expanded index, scatter_add_ adds whole rows: faster than index_add_
    squares.scatter_add_(0, index, own)
    # at least the initial 1, also where rounding loses it next to a large square
    scales = squares.index_select(0, rows).sub_(own).clamp_(min=1.0).rsqrt_()
    values.scatter_add_(0, index, scales.mul_(steps).neg_())


@dataclass
class GloveState:
    """Everything that changes in training, and the number of entries to train on."""

    parameters: GloveParameters
    n_entries: int
    """Number of entries of the matrix of co-occurrences."""
    n_parts: int = 0
    """Number of parts trained on, over all epochs."""
    losses: list[float] = field(default_factory=list)
    """Mean loss per entry of each epoch; the last one may be incomplete."""
    seconds: float = 0.0


def save_state(folder: Path, state: GloveState, options: GloveOptions) -> None:
    """Write the state and the options to ``folder``; raises the errors of ``write_state_file``."""
    progress = {name: value for name, value in vars(state).items() if name != "parameters"}
    position = f"part {state.n_parts} of the co-occurrences"
    runs.Run(folder, options).save(state.parameters.tensors(), progress, position)


def load_state(folder: Path, n_words: int, options: GloveOptions) -> GloveState:
    """Restore a saved state; raises the errors of ``Run.load``."""
    return runs.Run(folder, options).load(
        lambda tensors, progress: GloveState(GloveParameters(**tensors), **progress),
        GloveParameters.shapes(n_words, options.dimensions),
        "GloVe",
    )


PART_ENTRIES = 1 << 18
"""Number of entries per part. A thread trains on one part after another."""
MAX_REPEATS = 4
"""Maximum expected number of entries of one word per block. More would move the word too far at once."""


class GloveTrainer(runs.PartTrainer):
    """Trains the parameters of a state on shuffled entries, an array of E ``ENTRY``."""

    unit, parts_per_round, ends_rounds_with_epochs = "pairs", 16, True

    def __init__(self, entries: np.ndarray, options: GloveOptions, state: GloveState) -> None:
        super().__init__(state, -(-len(entries) // PART_ENTRIES), options.epochs)
        self.entries, self.options, self.state = entries, options, state
        self.n_words = len(state.parameters.vectors) // 2
        # a word has at most V entries, one per context word
        expected_repeats = self.n_words / len(self.entries)
        self.block_cells = min(options.block_cells, max(1, int(MAX_REPEATS / expected_repeats)))

    def count(self, parts: range) -> int:
        """Count the entries of some parts."""
        return sum(min(PART_ENTRIES, len(self.entries) - self._first_entry(part)) for part in parts)

    def train_part(self, part: int) -> float:
        """Train on the blocks of one part; return the sum of their losses."""
        begin = self._first_entry(part)
        entries = self.entries[begin : begin + PART_ENTRIES]
        rows = torch.from_numpy(entries["row"].astype(np.int64))
        columns = torch.from_numpy(entries["column"].astype(np.int64) + self.n_words)
        x = entries["weight"].astype(np.float64)
        targets = torch.from_numpy(np.log(x).astype(np.float32))
        weights = np.minimum(1.0, (x / self.options.x_max) ** self.options.alpha).astype(np.float32)
        size, parameters, rate = self.block_cells, self.state.parameters, self.options.learning_rate
        blocks = zip(
            rows.split(size), columns.split(size), targets.split(size), torch.from_numpy(weights).split(size),
            strict=True,
        )  # fmt: skip
        return sum(train_block(parameters, *block, rate) for block in blocks)

    def finish_part(self, part: int, loss: float) -> None:
        """Add the loss of a part to the mean loss of its epoch."""
        if not np.isfinite(loss):
            raise ScoringError(
                "training diverged: the loss is not finite. Start again with a lower --learning-rate (now "
                f"{self.options.learning_rate:g}) or a lower --block-cells (now {self.block_cells})"
            )
        epoch = part // self.parts_per_epoch
        if len(self.state.losses) <= epoch:
            self.state.losses.append(0.0)
        self.state.losses[epoch] += loss / len(self.entries)

    def finish_round(self, parts: range) -> str:
        """Return, for the progress bar, the mean loss per entry in the current epoch so far."""
        epoch, place = divmod(parts[-1], self.parts_per_epoch)
        return f"loss {self.state.losses[epoch] * self.parts_per_epoch / (place + 1):.4f}"

    def _first_entry(self, part: int) -> int:
        """Return the index of the first entry of a part. Parts come in another random order in each epoch."""
        epoch, place = divmod(part, self.parts_per_epoch)
        order = np.random.default_rng([self.options.seed, epoch]).permutation(self.parts_per_epoch)
        return int(order[place]) * PART_ENTRIES


ENTRIES_FILE = "entries"


def start_run(
    texts: Sequence[Path], normaliser: Normaliser, folder: Path, options: GloveOptions, *, memory_mb: int
) -> None:
    """Count and shuffle the co-occurrences of texts, and save the first state of a run.

    Raises:
        FormatError: a text cannot be read or has no words.
        ConfigError: the folder has a run, an option is out of range, there are fewer words than
            dimensions, or no two words occur together.
        ScoringError: the disk is full.
    """
    counts.check_memory(memory_mb)
    text = runs.start_text(texts, normaliser, folder, options.min_count)
    if options.dimensions > len(text.words):
        raise ConfigError(
            f"dimensions: {options.dimensions} are more than the {len(text.words):,} words in "
            "the vocabulary: give more text, or fewer dimensions"
        )
    cells = folder / "cells"
    counts.count_cooccurrences(text, cells, window=options.window, by_distance=True, memory_mb=memory_mb)
    n_entries = shuffle_entries(
        cells, folder / ENTRIES_FILE, n_words=len(text.words), memory_mb=memory_mb, seed=options.seed
    )
    cells.unlink()
    parameters = GloveParameters.initialise(len(text.words), options.dimensions, options.seed)
    save_state(folder, GloveState(parameters, n_entries), options)


def run(folder: Path, options: GloveOptions, threads: int) -> tuple[WordVectors, GloveState]:
    """Train the run of a folder from its saved state to the end.

    Returns:
        The vectors, and the last state. A vector is the sum of a word's vectors as word and as context.

    Raises:
        ConfigError: the folder has no run, or one with other options.
        BundleError: the run's files are damaged.
        ScoringError: training diverges, or the state cannot be written.
    """
    text = runs.load_text(folder)
    state = load_state(folder, len(text.words), options)
    entries = open_entries(folder / ENTRIES_FILE, len(text.words), state.n_entries)
    trainer = GloveTrainer(entries, options, state)
    trainer.train(threads, lambda: save_state(folder, state, options))
    words, contexts = state.parameters.vectors.chunk(2)
    return WordVectors(text.words, (words + contexts).numpy()), state
