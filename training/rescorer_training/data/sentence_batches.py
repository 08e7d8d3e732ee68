"""Owns the order in which text becomes training batches, sentence by sentence: bucketed by length, the same
for a seed.

Each sentence is one row that starts from the start state, as in scoring. ``streams`` is the other way: the
whole text in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

POOL_SENTENCES = 65_536
"""Sentences shuffled together, sorted by length and cut into batches: large enough for little padding."""


class Batches(Protocol):
    """The batches of one epoch."""

    def __len__(self) -> int: ...

    def n_words(self, number: int) -> int:
        """Targets in a batch."""

    def rows(self, number: int, part: int = 0, n_parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, both (B, T) int64, of every ``n_parts``-th row from row ``part`` on; padding
        has the target -1. A part may have no rows."""


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
    corpora: tuple[tuple[int, float], ...] = ()
    """Sentences and weight of each corpus, in their order: an epoch draws weight × sentences of each, none of
    them twice before all others once. Empty: every sentence once."""

    @classmethod
    def of(
        cls,
        ids: np.ndarray,
        *,
        start: int,
        end: int,
        longest: int,
        corpora: tuple[tuple[int, float], ...] = (),
    ) -> Sentences:
        ends = np.flatnonzero(ids == end) + 1
        starts = np.concatenate([[0], ends[:-1]])
        lengths = ends - starts
        n_cut = int((lengths > longest).sum())
        return cls(ids, starts, np.minimum(lengths, longest), start, n_cut, corpora)

    @property
    def n_words(self) -> int:
        """Targets in the text."""
        return int(self.lengths.sum())

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Sentence numbers of an epoch in random order."""
        if not self.corpora:
            return random.permutation(len(self.starts))
        drawn, first = [], 0
        for n_sentences, weight in self.corpora:
            left = round(weight * n_sentences)
            while left > 0:
                drawn.append(first + random.permutation(n_sentences)[:left])
                left -= n_sentences
            first += n_sentences
        return random.permutation(np.concatenate(drawn))

    def rows(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of some sentences, both (B, T) int64; padding is ``<s>`` and -1."""
        lengths = self.lengths[chosen, None]
        columns = np.arange(int(lengths.max(initial=0)))
        places = np.minimum(self.starts[chosen, None] + columns, len(self.ids) - 1)
        targets = np.where(columns < lengths, self.ids[places], -1).astype(np.int64)
        inputs = np.full_like(targets, self.start_id)
        inputs[:, 1:] = np.where(targets[:, :-1] >= 0, targets[:, :-1], self.start_id)
        return inputs, targets


@dataclass(frozen=True)
class SentenceBatches:
    """The batches of an epoch, every sentence a row."""

    sentences: Sentences
    order: list[np.ndarray]

    @classmethod
    def of(cls, sentences: Sentences, batch_words: int, seed: int, epoch: int) -> SentenceBatches:
        return cls(sentences, batches(sentences, batch_words, seed, epoch))

    def __len__(self) -> int:
        return len(self.order)

    def n_words(self, number: int) -> int:
        return int(self.sentences.lengths[self.order[number]].sum())

    def rows(self, number: int, part: int = 0, n_parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
        return self.sentences.rows(self.order[number][part::n_parts])


def batches(sentences: Sentences, batch_words: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Sentence numbers of every batch of an epoch, in the order to train on them.

    A batch holds at most ``batch_words`` words, padding included (or one sentence that is longer).
    """
    random = np.random.default_rng([seed, epoch])
    order = sentences.draw(random)
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
