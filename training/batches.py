"""Owns the order in which sentences become training batches: bucketed by length, the same for a seed.

Each sentence is one row that starts from the start state, as in scoring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

POOL_SENTENCES = 65_536
"""Sentences shuffled together, sorted by length and cut into batches: large enough for little padding."""


@dataclass(frozen=True)
class Sentences:
    """Encoded text with the bounds of its sentences.

    Sentences longer than ``longest`` words are cut there in training; ``n_cut`` counts them.
    """

    ids: np.ndarray
    """Flat ids, each sentence closed by ``end``."""
    starts: np.ndarray
    """(S,) first id of each sentence."""
    lengths: np.ndarray
    """(S,) ids to predict in each sentence, ``</s>`` included unless the sentence was cut."""
    start_id: int
    n_cut: int

    @classmethod
    def of(cls, ids: np.ndarray, *, start: int, end: int, longest: int) -> Sentences:
        ends = np.flatnonzero(ids == end) + 1
        starts = np.concatenate([[0], ends[:-1]])
        lengths = ends - starts
        return cls(ids, starts, np.minimum(lengths, longest), start, int((lengths > longest).sum()))

    @property
    def n_words(self) -> int:
        """Targets an epoch."""
        return int(self.lengths.sum())

    def rows(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of some sentences, both (B, T) int64; padding is ``<s>`` and -1."""
        lengths = self.lengths[chosen]
        targets = np.full((len(chosen), int(lengths.max())), -1, dtype=np.int64)
        for row, (start, length) in enumerate(zip(self.starts[chosen], lengths, strict=True)):
            targets[row, :length] = self.ids[start : start + length]
        inputs = np.full_like(targets, self.start_id)
        inputs[:, 1:] = np.where(targets[:, :-1] >= 0, targets[:, :-1], self.start_id)
        return inputs, targets


def batches(sentences: Sentences, batch_words: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Sentence numbers of every batch of an epoch, in the order to train on them.

    A batch holds at most ``batch_words`` words, padding included (or one sentence that is longer).
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(sentences.starts))
    out: list[np.ndarray] = []
    for begin in range(0, len(order), POOL_SENTENCES):
        pool = order[begin : begin + POOL_SENTENCES]
        pool = pool[np.argsort(sentences.lengths[pool], kind="stable")]
        out.extend(in_length_order(pool, sentences.lengths, batch_words))
    return [out[i] for i in random.permutation(len(out))]


def in_length_order(pool: np.ndarray, lengths: np.ndarray, batch_words: int) -> Iterator[np.ndarray]:
    """Cuts sentences sorted by length into batches of at most ``batch_words`` padded words."""
    begin = 0
    for end in range(1, len(pool) + 1):
        if end == len(pool) or (end + 1 - begin) * lengths[pool[end]] > batch_words:
            yield pool[begin:end]
            begin = end
