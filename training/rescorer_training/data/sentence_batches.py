"""Batch encoded text sentence by sentence, sentences of similar length together.

Each sentence is one row that begins at the start state, as in scoring. The order is random but depends only
on the seed and the epoch. ``stream_batches`` is the alternative, which keeps the text in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

POOL_SENTENCES = 65_536
"""Number of sentences to sort by length and cut into batches together; large enough to limit padding."""


class Batches(Protocol):
    """The batches of one epoch."""

    def __len__(self) -> int: ...

    def count_targets(self, number: int) -> int:
        """Count the words to predict in a batch."""

    def make_rows(self, number: int, part: int = 0, n_parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of a batch, or of the part of it that one worker trains on.

        A part consists of every ``n_parts``-th row from row ``part`` on, and may have no rows.

        Returns:
            Two (B, T) int64 arrays; the target of padding is -1.
        """

    def make_topics(self, number: int, part: int = 0, n_parts: int = 1) -> np.ndarray | None:
        """Return the topic features of the same rows, (B, T or 1, K) float32; None if the text has none."""


@dataclass(frozen=True)
class Sentences:
    """Encoded text with the bounds of its sentences."""

    ids: np.ndarray
    """(N,) word ids, each sentence closed by ``</s>``."""
    starts: np.ndarray
    """(S,) index of the first id of each sentence."""
    lengths: np.ndarray
    """(S,) number of words to predict in each sentence, including ``</s>`` unless it was truncated."""
    start_id: int
    """Id of ``<s>``."""
    n_truncated: int
    """Number of sentences that were truncated because they exceed the length limit."""
    corpora: tuple[tuple[int, float], ...] = ()
    """Number of sentences and weight of each corpus, in text order; if empty, every sentence is drawn once.

    An epoch draws weight × number of sentences from each corpus; no sentence is drawn again before all others
    of its corpus have been drawn.
    """

    topics: np.ndarray | None = None
    """(S, K) float32 topic features of the text before each sentence; None if no network reads them."""

    @classmethod
    def from_ids(
        cls,
        ids: np.ndarray,
        *,
        start_id: int,
        end_id: int,
        max_words: int,
        corpora: tuple[tuple[int, float], ...] = (),
        topics: np.ndarray | None = None,
    ) -> Sentences:
        """Find the sentences of a flat text, and truncate those longer than ``max_words``."""
        ends = np.flatnonzero(ids == end_id) + 1
        starts = np.concatenate([[0], ends[:-1]])
        lengths = ends - starts
        n_truncated = int((lengths > max_words).sum())
        return cls(ids, starts, np.minimum(lengths, max_words), start_id, n_truncated, corpora, topics)

    @property
    def n_words(self) -> int:
        """Number of words to predict in the whole text."""
        return int(self.lengths.sum())

    @property
    def targets(self) -> np.ndarray:
        """What is predicted, as one flat array of ids: here the words."""
        return self.ids

    def count_targets(self, numbers: np.ndarray) -> int:
        """Count what is predicted in some sentences."""
        return int(self.lengths[numbers].sum())

    def draw_epoch(self, random: np.random.Generator) -> np.ndarray:
        """Draw the sentence numbers of one epoch, in random order."""
        if not self.corpora:
            return random.permutation(len(self.starts))
        drawn, first = [], 0
        for n_sentences, weight in self.corpora:
            remaining = round(weight * n_sentences)
            while remaining > 0:
                drawn.append(first + random.permutation(n_sentences)[:remaining])
                remaining -= n_sentences
            first += n_sentences
        return random.permutation(np.concatenate(drawn))

    def topics_of(self, numbers: np.ndarray) -> np.ndarray | None:
        """Return the topic features of some sentences, (B, 1, K)."""
        return None if self.topics is None else self.topics[numbers][:, None]

    def topics_at(self, positions: np.ndarray) -> np.ndarray | None:
        """Return the topic features of the sentences at some positions in the text, (...) → (..., K)."""
        if self.topics is None:
            return None
        return self.topics[np.searchsorted(self.starts, positions, side="right") - 1]

    def pad_rows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of some sentences, both (B, T) int64, padded with ``<s>`` and -1."""
        targets = self.pad(self.ids, numbers)
        inputs = np.full_like(targets, self.start_id)
        inputs[:, 1:] = np.where(targets[:, :-1] >= 0, targets[:, :-1], self.start_id)
        return inputs, targets

    def pad(self, values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Arrange the values of some sentences in rows that are padded with -1: (N,) → (B, T) int64."""
        lengths = self.lengths[numbers, None]
        columns = np.arange(int(lengths.max(initial=0)))
        positions = np.minimum(self.starts[numbers, None] + columns, len(self.ids) - 1)
        return np.where(columns < lengths, values[positions], -1).astype(np.int64)


@dataclass(frozen=True)
class SentenceBatches:
    """The batches of one epoch, with one sentence per row."""

    sentences: Sentences
    batches: list[np.ndarray]
    """Sentence numbers of each batch."""

    @classmethod
    def for_epoch(cls, sentences: Sentences, batch_words: int, seed: int, epoch: int) -> SentenceBatches:
        return cls(sentences, plan_batches(sentences, batch_words, seed, epoch))

    def __len__(self) -> int:
        return len(self.batches)

    def count_targets(self, number: int) -> int:
        return self.sentences.count_targets(self.batches[number])

    def make_rows(self, number: int, part: int = 0, n_parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
        return self.sentences.pad_rows(self.batches[number][part::n_parts])

    def make_topics(self, number: int, part: int = 0, n_parts: int = 1) -> np.ndarray | None:
        return self.sentences.topics_of(self.batches[number][part::n_parts])


def plan_batches(sentences: Sentences, batch_words: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the sentence numbers of every batch of an epoch, in training order.

    A batch has at most ``batch_words`` words including padding, unless it is a single longer sentence.
    """
    random = np.random.default_rng([seed, epoch])
    order = sentences.draw_epoch(random)
    batches: list[np.ndarray] = []
    for begin in range(0, len(order), POOL_SENTENCES):
        pool = order[begin : begin + POOL_SENTENCES]
        pool = pool[np.argsort(sentences.lengths[pool], kind="stable")]
        batches.extend(cut_into_batches(pool, sentences.lengths, batch_words))
    return [batches[i] for i in random.permutation(len(batches))]


def cut_into_batches(pool: np.ndarray, lengths: np.ndarray, batch_words: int) -> Iterator[np.ndarray]:
    """Cut sentences that are sorted by length into batches of at most ``batch_words`` padded words."""
    begin = 0
    for end in range(1, len(pool) + 1):
        if end == len(pool) or (end + 1 - begin) * lengths[pool[end]] > batch_words:
            yield pool[begin:end]
            begin = end
