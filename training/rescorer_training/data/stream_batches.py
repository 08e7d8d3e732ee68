"""Owns contiguous batches: the text in order, read at several places in parallel, for state that is carried
over sentence ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError


@dataclass(frozen=True)
class StreamBatches:
    """The text as a ring, cut into ``batch_rows`` streams of equal length; batch n has the n-th ``bptt``
    words of each, so that a row goes on where the same row of the batch before ended.

    A word's input is the word before it in the text. The first word's is the last of the text, ``</s>``: with
    the start state, what scoring starts a text from. The ring begins at ``offset``, another one each epoch,
    or every epoch would cut the gradient at the same words.
    """

    ids: np.ndarray
    """(N,) flat ids, each sentence closed by ``</s>``."""
    batch_rows: int
    bptt: int
    offset: int = 0

    @classmethod
    def of(cls, ids: np.ndarray, batch_rows: int, bptt: int, seed: int, epoch: int) -> StreamBatches:
        """The batches of an epoch; raises ConfigError where the text is too short for so many rows."""
        if len(ids) < 2 * batch_rows:
            raise ConfigError(
                f"the text has {len(ids)} words and sentence ends; too few for {batch_rows} rows"
            )
        offset = int(np.random.default_rng([seed, epoch]).integers(len(ids)))
        return cls(ids, batch_rows, bptt, offset)

    @property
    def length(self) -> int:
        """Words of a stream; the last one may lack some."""
        return -(-len(self.ids) // self.batch_rows)

    def __len__(self) -> int:
        return -(-self.length // self.bptt)

    def n_words(self, number: int) -> int:
        return int((self._places(number, slice(None)) < len(self.ids)).sum())

    def rows(self, number: int, part: int = 0, n_parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
        places = self._places(number, slice(part, None, n_parts))
        inputs = self.ids[(places + self.offset - 1) % len(self.ids)].astype(np.int64)
        targets = self.ids[(places + self.offset) % len(self.ids)].astype(np.int64)
        return inputs, np.where(places < len(self.ids), targets, -1)

    def _places(self, number: int, rows: slice) -> np.ndarray:
        """(B, T) places in the ring; those of the last streams may lie behind its end, and are no words."""
        begin = number * self.bptt
        columns = np.arange(begin, min(begin + self.bptt, self.length))
        return np.arange(self.batch_rows)[rows, None] * self.length + columns
