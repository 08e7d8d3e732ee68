"""Train GloVe over shuffled entries, in one or several threads, with a state that can be resumed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from rescorer.errors import ScoringError
from rescorer_training.progress import track
from rescorer_training.vectors.glove.model import train_block
from rescorer_training.vectors.glove.options import GloveOptions
from rescorer_training.vectors.glove.state import GloveState, save_state

PART_ENTRIES = 1 << 18
"""Number of entries that one thread trains on before it takes the next part."""
PARTS_PER_ROUND = 16
"""Number of parts after which all threads wait for each other, so that the state can be saved."""
SECONDS_BETWEEN_SAVES = 60.0
MAX_REPEATS = 4
"""Number of entries of one word that a block may be expected to have; more would move it too far."""


class GloveTrainer:
    """Trains the parameters of a state on a file of shuffled entries.

    With one thread, the result depends only on the entries, the options and the seed, interrupted or not.
    Several threads change the same parameters without locks, as those of the original program do.
    """

    def __init__(self, folder: Path, entries: np.ndarray, options: GloveOptions, state: GloveState) -> None:
        self.folder, self.entries, self.options, self.state = folder, entries, options, state
        self.parts_per_epoch = -(-len(self.entries) // PART_ENTRIES)
        self.n_words = len(state.parameters.vectors) // 2
        # a word has at most V entries, one per context word
        expected_repeats = self.n_words / len(self.entries)
        self.block_cells = min(options.block_cells, max(1, int(MAX_REPEATS / expected_repeats)))

    def train(self, threads: int) -> None:
        """Train until the last epoch ends, and save the state about once per minute and at the end.

        Raises:
            ScoringError: training diverges, or the state cannot be written.
        """
        state, last_save = self.state, time.monotonic()
        n_parts = self.options.epochs * self.parts_per_epoch
        with (
            _use_one_thread_per_operation(),
            track("training", "pairs", sum(map(self._count_entries, range(state.n_parts, n_parts)))) as task,
            ThreadPoolExecutor(threads) as pool,
        ):
            while state.n_parts < n_parts:
                begin = time.monotonic()
                parts = self._next_round(n_parts)
                for part, loss in zip(parts, pool.map(self._train_part, parts), strict=True):
                    task.advance(self._count_entries(part))
                    self._add_loss(part, loss)
                task.set_note(f"loss {self._mean_loss(parts[-1]):.4f}")
                state.n_parts, now = parts.stop, time.monotonic()
                state.seconds += now - begin
                if now - last_save > SECONDS_BETWEEN_SAVES:
                    save_state(self.folder, state, self.options)
                    last_save = now
        save_state(self.folder, state, self.options)

    def _next_round(self, n_parts: int) -> range:
        """The next parts, of which all belong to one epoch."""
        first = self.state.n_parts
        end_of_epoch = (first // self.parts_per_epoch + 1) * self.parts_per_epoch
        return range(first, min(first + PARTS_PER_ROUND, end_of_epoch, n_parts))

    def _train_part(self, part: int) -> float:
        """Train on the blocks of one part; return the sum of their losses."""
        begin = self._first_entry(part)
        entries = self.entries[begin : begin + PART_ENTRIES]
        rows = torch.from_numpy(entries["row"].astype(np.int64)).split(self.block_cells)
        columns = torch.from_numpy(entries["column"].astype(np.int64) + self.n_words)
        x = entries["weight"].astype(np.float64)
        targets = torch.from_numpy(np.log(x).astype(np.float32))
        weights = np.minimum(1.0, (x / self.options.x_max) ** self.options.alpha).astype(np.float32)
        blocks = zip(
            rows,
            columns.split(self.block_cells),
            targets.split(self.block_cells),
            torch.from_numpy(weights).split(self.block_cells),
            strict=True,
        )
        parameters, rate = self.state.parameters, self.options.learning_rate
        return sum(train_block(parameters, *block, rate) for block in blocks)

    def _count_entries(self, part: int) -> int:
        """Number of entries of a part."""
        begin = self._first_entry(part)
        return min(PART_ENTRIES, len(self.entries) - begin)

    def _first_entry(self, part: int) -> int:
        """Where a part begins in the file; each epoch takes the parts in another random order."""
        epoch, place = divmod(part, self.parts_per_epoch)
        order = np.random.default_rng([self.options.seed, epoch]).permutation(self.parts_per_epoch)
        return int(order[place]) * PART_ENTRIES

    def _add_loss(self, part: int, loss: float) -> None:
        """Add a part's loss to the mean of its epoch."""
        if not np.isfinite(loss):
            raise ScoringError(
                "training diverged: the loss is not finite. Start again with a lower --learning-rate (now "
                f"{self.options.learning_rate:g}) or a lower --block-cells (now {self.block_cells})"
            )
        epoch = part // self.parts_per_epoch
        if len(self.state.losses) <= epoch:
            self.state.losses.append(0.0)
        self.state.losses[epoch] += loss / len(self.entries)

    def _mean_loss(self, part: int) -> float:
        """Mean loss per entry so far in the epoch of a part."""
        epoch, place = divmod(part, self.parts_per_epoch)
        return self.state.losses[epoch] * self.parts_per_epoch / (place + 1)


@contextmanager
def _use_one_thread_per_operation() -> Iterator[None]:
    """Leave the processors to the threads that train."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
