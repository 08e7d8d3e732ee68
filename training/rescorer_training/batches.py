"""Batch encoded text: sentence by sentence, or in order as parallel streams; with labels, for classifiers.

A sentence is one row that begins at the start state, as in scoring; sentences of similar length are together.
The order is random but depends only on the seed and the epoch. ``stream_batches`` keeps the text in order.

The rows of sentences with labels, one per sentence or one per word, are the words and ``</s>``, so that a
sentence without words has one position. They are padded with ``<s>``, which occurs nowhere else in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np

from rescorer.errors import ConfigError
from rescorer.models.network_files import Vocabulary

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


@dataclass(frozen=True)
class LabelledSentences(Sentences):
    """Sentences with one label each, of which a whole row predicts one."""

    labels: np.ndarray = field(kw_only=True)
    """(S,) number of the label of each sentence."""

    @property
    def targets(self) -> np.ndarray:
        return self.labels

    def count_targets(self, numbers: np.ndarray) -> int:
        return len(numbers)

    def select(self, numbers: np.ndarray) -> LabelledSentences:
        """Some of the sentences, in the given order."""
        starts, lengths = self.starts[numbers], self.lengths[numbers]
        return replace(self, starts=starts, lengths=lengths, labels=self.labels[numbers])

    def pad_rows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the words, (B, T), and the label, (B, 1), of some sentences, both int64."""
        return pad_words(self, numbers), self.labels[numbers, None].astype(np.int64)


@dataclass(frozen=True)
class TaggedSentences(Sentences):
    """Sentences with one label per word."""

    tags: np.ndarray = field(kw_only=True)
    """(N,) number of the label of each id; -1 at ``</s>``, which has none."""

    @property
    def targets(self) -> np.ndarray:
        return self.tags[self.tags >= 0]

    def count_targets(self, numbers: np.ndarray) -> int:
        return int((self.pad(self.tags, numbers) >= 0).sum())

    def pad_rows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the words and their labels, both (B, T) int64; the label of ``</s>`` and padding is -1."""
        return pad_words(self, numbers), self.pad(self.tags, numbers)


LONGEST = 200
"""Longer sentences are truncated to this number of words, in training and in use."""


def label(ids: np.ndarray, labels: np.ndarray, vocabulary: Vocabulary) -> LabelledSentences:
    """Give each sentence of a flat text its label.

    Args:
        ids: (N,) word ids, each sentence closed by ``</s>``.
        labels: (S,) number of the label of each sentence.
    """
    return LabelledSentences(**_find_sentences(ids, vocabulary), labels=labels)


def tag(
    sentences: Sequence[Sequence[tuple[str, str]]], labels: Sequence[str], vocabulary: Vocabulary
) -> TaggedSentences:
    """Encode sentences of pairs of a canonical word and its label.

    Raises:
        ConfigError: a label is not one of ``labels``.
    """
    numbers = {name: number for number, name in enumerate(labels)}
    ids, tags = [], []
    for number, sentence in enumerate(sentences, start=1):
        for word, name in sentence:
            if name not in numbers:
                raise ConfigError(
                    f"sentence {number}: {word!r} has the label {name!r}; expected one of {', '.join(labels)}"
                )
        ids += [*vocabulary.encode(word for word, _ in sentence).tolist(), vocabulary.end]
        tags += [*(numbers[name] for _, name in sentence), -1]
    return TaggedSentences(**_find_sentences(np.array(ids), vocabulary), tags=np.array(tags))


def _find_sentences(ids: np.ndarray, vocabulary: Vocabulary) -> dict[str, Any]:
    """The fields of ``Sentences`` for a flat text."""
    found = Sentences.from_ids(ids, start_id=vocabulary.start, end_id=vocabulary.end, max_words=LONGEST)
    return {known.name: getattr(found, known.name) for known in fields(found)}


def pad_words(sentences: Sentences, numbers: np.ndarray) -> np.ndarray:
    """Arrange the words of some sentences in rows, padded with ``<s>``: (B, T) int64."""
    ids = sentences.pad(sentences.ids, numbers)
    return np.where(ids >= 0, ids, sentences.start_id)


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
