"""Encoded sentences with labels to predict: one per sentence, or one per word.

The rows are the words of a sentence and ``</s>``, so that a sentence without words has one position. They are
padded with ``<s>``, which occurs nowhere else in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from rescorer.errors import ConfigError
from rescorer.vocabulary import Vocabulary
from rescorer_training.data.sentence_batches import Sentences


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
