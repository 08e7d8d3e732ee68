"""Divide encoded text into batches, sentence by sentence or as parallel streams of the text in order.

``SentenceBatches`` have one sentence per row. Each row begins at the start state of the network, as in
scoring, and sentences of similar length share a batch. The order is random but depends only on the seed and
the epoch. ``StreamBatches`` keep the text in order.

Classifiers need sentences with labels, one label per sentence or one per word. The rows of these sentences
are the words and ``</s>``, so that even a sentence without words has one position. The rows are padded with
``<s>``, which they contain nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np

from rescorer.errors import ConfigError, quote
from rescorer.models.network_files import Vocabulary

POOL_SENTENCES = 65_536
"""Number of sentences to sort by length together before batches are cut. Large pools need less padding."""


class Batches(Protocol):
    """The batches of one epoch."""

    def __len__(self) -> int: ...

    def count_targets(self, number: int) -> int:
        """Count the words to predict in a batch."""

    def make_rows(self, number: int, part: int = 0, n_parts: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of a batch, or of one part of the batch.

        A part consists of every ``n_parts``-th row, starting with row ``part``. It may have no rows.

        Returns:
            Two (B, T) int64 arrays; the target of padding is -1.
        """

    def make_topics(self, number: int, part: int = 0, n_parts: int = 1) -> np.ndarray | None:
        """Return the topic features of the rows that ``make_rows`` returns, (B, T or 1, K) float32.

        None if the text has no topic features.
        """

    def find_positions(self, number: int, part: int = 0, n_parts: int = 1) -> np.ndarray:
        """Return the place in the text of each target of ``make_rows``, without padding, row by row: (n,)."""


@dataclass(frozen=True)
class Sentences:
    """Encoded text, and where its sentences start and end."""

    ids: np.ndarray
    """(N,) word ids, each sentence closed by ``</s>``."""
    starts: np.ndarray
    """(S,) index of the first id of each sentence."""
    lengths: np.ndarray
    """(S,) number of words to predict in each sentence, including ``</s>`` unless it was truncated."""
    start_id: int
    """Id of ``<s>``."""
    n_truncated: int
    """Number of sentences that were truncated because they were too long."""
    corpora: tuple[tuple[int, float], ...] = ()
    """For each corpus of the text, in order: its number of sentences, and its weight.

    An epoch draws weight × number of sentences from each corpus, and draws no sentence again before all
    others of its corpus. If empty, an epoch draws every sentence once.
    """

    topics: np.ndarray | None = None
    """(S, K) float32 topic features of the text before each sentence; None if the network reads no topics."""
    units_per_word: float = 1.0
    """Mean number of ids per word, ends of sentences included in both: above 1 if ids are pieces of words."""

    @classmethod
    def from_ids(
        cls, ids: np.ndarray, *, start_id: int, end_id: int, max_words: int, **other_fields: Any
    ) -> Self:
        """Find the sentences of a flat text, and truncate those longer than ``max_words``.

        Args:
            end_id: id of ``</s>``.
            other_fields: the fields that do not follow from the ids, such as ``corpora``.
        """
        ends = np.flatnonzero(ids == end_id) + 1
        starts = np.concatenate([[0], ends[:-1]])
        lengths = ends - starts
        n_truncated = int((lengths > max_words).sum())
        return cls(ids, starts, np.minimum(lengths, max_words), start_id, n_truncated, **other_fields)

    @property
    def n_words(self) -> int:
        """Number of words to predict in the whole text."""
        return int(self.lengths.sum())

    @property
    def targets(self) -> np.ndarray:
        """Everything that a model predicts, as one flat array: ids of words here, labels in subclasses."""
        return self.ids

    def count_targets(self, numbers: np.ndarray) -> int:
        """Count what a model predicts in the sentences of the given numbers."""
        return int(self.lengths[numbers].sum())

    def draw_epoch(self, random: np.random.Generator) -> np.ndarray:
        """Draw the numbers of the sentences of one epoch, in random order."""
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
        """Return the topic features of the sentences of the given numbers, (B, 1, K)."""
        return None if self.topics is None else self.topics[numbers][:, None]

    def topics_at(self, positions: np.ndarray) -> np.ndarray | None:
        """Return the topic features of the sentence at each position of the text, (...) → (..., K)."""
        if self.topics is None:
            return None
        return self.topics[np.searchsorted(self.starts, positions, side="right") - 1]

    def pad_rows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of the sentences of the given numbers, both (B, T) int64.

        Inputs are padded with ``<s>`` and targets with -1.
        """
        targets = self.pad(self.ids, numbers)
        inputs = np.full_like(targets, self.start_id)
        inputs[:, 1:] = np.where(targets[:, :-1] >= 0, targets[:, :-1], self.start_id)
        return inputs, targets

    def pad(self, values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Arrange values for all positions of the text, (N,), in one row per given sentence, (B, T) int64.

        Rows are padded with -1.
        """
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

    def find_positions(self, number: int, part: int = 0, n_parts: int = 1) -> np.ndarray:
        positions = self.sentences.pad(
            np.arange(len(self.sentences.ids)), self.batches[number][part::n_parts]
        )
        return positions[positions >= 0]


def plan_batches(sentences: Sentences, batch_words: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the numbers of the sentences in every batch of an epoch, in training order.

    A batch has at most ``batch_words`` words including padding, except for a single sentence that is longer.
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
    """Cut sentences into batches of at most ``batch_words`` words including padding.

    Args:
        pool: numbers of the sentences, sorted by length.
        lengths: (S,) length of every sentence of the text.
    """
    begin = 0
    for end in range(1, len(pool) + 1):
        if end == len(pool) or (end + 1 - begin) * lengths[pool[end]] > batch_words:
            yield pool[begin:end]
            begin = end


@dataclass(frozen=True)
class LabelledSentences(Sentences):
    """Sentences with one label each: the whole row predicts the label."""

    labels: np.ndarray = field(kw_only=True)
    """(S,) number of the label of each sentence."""

    @property
    def targets(self) -> np.ndarray:
        return self.labels

    def count_targets(self, numbers: np.ndarray) -> int:
        return len(numbers)

    def select(self, numbers: np.ndarray) -> LabelledSentences:
        """Return the sentences of the given numbers, in this order."""
        starts, lengths = self.starts[numbers], self.lengths[numbers]
        return replace(self, starts=starts, lengths=lengths, labels=self.labels[numbers])

    def pad_rows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the words, (B, T), and the labels, (B, 1), of the sentences, both int64."""
        return pad_words(self, numbers), self.labels[numbers, None].astype(np.int64)


@dataclass(frozen=True)
class TaggedSentences(Sentences):
    """Sentences with one label per word."""

    tags: np.ndarray = field(kw_only=True)
    """(N,) number of the label of each word; -1 at ``</s>``, which has no label."""

    @property
    def targets(self) -> np.ndarray:
        return self.tags[self.tags >= 0]

    def count_targets(self, numbers: np.ndarray) -> int:
        return int((self.pad(self.tags, numbers) >= 0).sum())

    def pad_rows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the words and their labels, both (B, T) int64; ``</s>`` and padding have the label -1."""
        return pad_words(self, numbers), self.pad(self.tags, numbers)


LONGEST = 200
"""Longer sentences are truncated to this number of words by default, in training and in use."""


def label(
    ids: np.ndarray, labels: np.ndarray, vocabulary: Vocabulary, longest: int = LONGEST
) -> LabelledSentences:
    """Give each sentence of a flat text its label.

    Args:
        ids: (N,) word ids, each sentence closed by ``</s>``.
        labels: (S,) number of the label of each sentence.
    """
    return LabelledSentences.from_ids(
        ids, start_id=vocabulary.start, end_id=vocabulary.end, max_words=longest, labels=labels
    )


def tag(
    sentences: Sequence[Sequence[tuple[str, str]]], labels: Sequence[str], vocabulary: Vocabulary
) -> TaggedSentences:
    """Encode sentences in which every word has a label.

    Args:
        sentences: pairs of a normalised word and its label, for each sentence.
        labels: all labels, in the order of their numbers.

    Raises:
        ConfigError: a label is not one of ``labels``.
    """
    numbers = {name: number for number, name in enumerate(labels)}
    ids, tags = [], []
    for number, sentence in enumerate(sentences, start=1):
        for word, name in sentence:
            if name not in numbers:
                raise ConfigError(
                    f"sentence {number}: {quote(word)} has the label {name!r}; expected one of "
                    f"{', '.join(labels)}"
                )
        ids += [*vocabulary.encode(word for word, _ in sentence).tolist(), vocabulary.end]
        tags += [*(numbers[name] for _, name in sentence), -1]
    return TaggedSentences.from_ids(
        np.array(ids),
        start_id=vocabulary.start,
        end_id=vocabulary.end,
        max_words=LONGEST,
        tags=np.array(tags),
    )


def pad_words(sentences: Sentences, numbers: np.ndarray) -> np.ndarray:
    """Arrange the words of the sentences of the given numbers in rows padded with ``<s>``: (B, T) int64."""
    ids = sentences.pad(sentences.ids, numbers)
    return np.where(ids >= 0, ids, sentences.start_id)


@dataclass(frozen=True)
class StreamBatches:
    """The text as a ring, cut into ``batch_rows`` streams of equal length.

    Batch n has the n-th ``bptt`` words of each stream, so that each row continues the same row of the
    previous batch. The input for predicting a word is the word before it. For the first word of the text,
    that is the last word of the text, ``</s>``; scoring also begins a text with ``</s>`` and the start state.
    """

    ids: np.ndarray
    """(N,) word ids, each sentence closed by ``</s>``."""
    batch_rows: int
    """Number of streams, one per row of a batch."""
    bptt: int
    """Number of words per row of a batch. Back-propagation through time is truncated after so many words."""
    offset: int = 0
    """Index in ``ids`` at which the ring begins.

    The offset changes with every epoch; otherwise the gradient would be cut at the same words each time.
    """

    sentences: Sentences | None = None
    """The sentences of the text, if they have topic features to read with the words; otherwise None."""

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
        """Number of words per stream. The last streams may be shorter."""
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

    def find_positions(self, number: int, part: int = 0, n_parts: int = 1) -> np.ndarray:
        positions = self._positions(number, slice(part, None, n_parts))
        return (positions[positions < len(self.ids)] + self.offset) % len(self.ids)

    def _positions(self, number: int, rows: slice) -> np.ndarray:
        """Return the ring positions of a batch's words, (B, T). Those after the text's end are padding."""
        begin = number * self.bptt
        columns = np.arange(begin, min(begin + self.bptt, self.stream_length))
        return np.arange(self.batch_rows)[rows, None] * self.stream_length + columns
