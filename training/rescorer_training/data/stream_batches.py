"""Batch encoded text in order, as parallel streams, for networks that carry state across sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.data.sentence_batches import Sentences


@dataclass(frozen=True)
class StreamBatches:
    """The text as a ring, cut into ``batch_rows`` streams of equal length.

    Batch n has the n-th ``bptt`` words of each stream, so that each row continues the same row of the
    previous batch. The input of a word is the preceding word of the text. The input of the first word is the
    last word of the text, ``</s>``; with the start state, this matches the way scoring begins a text.
    """

    ids: np.ndarray
    """(N,) word ids, each sentence closed by ``</s>``."""
    batch_rows: int
    """Number of streams, one per row of a batch."""
    bptt: int
    """Number of words per row of a batch, and so the length of truncated back-propagation through time."""
    offset: int = 0
    """Index in ``ids`` at which the ring begins.

    It changes with every epoch; otherwise the gradient would be cut at the same words each time.
    """

    sentences: Sentences | None = None
    """The sentences of the text, whose topics each word has; None: words have no topics."""

    @classmethod
    def for_epoch(
        cls,
        ids: np.ndarray,
        batch_rows: int,
        bptt: int,
        seed: int,
        epoch: int,
        sentences: Sentences | None = None,
    ) -> StreamBatches:
        """Return the batches of one epoch, with an offset drawn from ``seed`` and ``epoch``.

        Raises:
            ConfigError: the text is too short for so many rows.
        """
        if len(ids) < 2 * batch_rows:
            raise ConfigError(
                f"the text has {len(ids)} words and sentence ends, too few for {batch_rows} rows; "
                f"expected at least {2 * batch_rows}"
            )
        offset = int(np.random.default_rng([seed, epoch]).integers(len(ids)))
        return cls(ids, batch_rows, bptt, offset, sentences)

    @property
    def stream_length(self) -> int:
        """Words per stream; the last streams may be shorter."""
        return -(-len(self.ids) // self.batch_rows)

    def __len__(self) -> int:
        return -(-self.stream_length // self.bptt)

    def count_targets(self, number: int) -> int:
        return int((self._positions(number, slice(None)) < len(self.ids)).sum())

    def make_rows(self, number: int, part: int = 0, n_parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
        positions = self._positions(number, slice(part, None, n_parts))
        inputs = self.ids[(positions + self.offset - 1) % len(self.ids)].astype(np.int64)
        targets = self.ids[(positions + self.offset) % len(self.ids)].astype(np.int64)
        return inputs, np.where(positions < len(self.ids), targets, -1)

    def make_topics(self, number: int, part: int = 0, n_parts: int = 1) -> np.ndarray | None:
        if self.sentences is None:
            return None
        positions = self._positions(number, slice(part, None, n_parts)) + self.offset
        return self.sentences.topics_at(positions % len(self.ids))

    def _positions(self, number: int, rows: slice) -> np.ndarray:
        """Return a batch's positions in the ring, (B, T); those beyond the end of the text are padding."""
        begin = number * self.bptt
        columns = np.arange(begin, min(begin + self.bptt, self.stream_length))
        return np.arange(self.batch_rows)[rows, None] * self.stream_length + columns
