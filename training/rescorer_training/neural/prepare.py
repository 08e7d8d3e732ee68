"""Prepare the text of a training run: choose the vocabulary, encode the text once and map it into memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rescorer.errors import ConfigError, FormatError
from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from rescorer_training.classes.partition import order_vocabulary
from rescorer_training.data.corpus import count_ids, number_words, read_encoded, read_lines, renumber
from rescorer_training.data.pipes import find_size
from rescorer_training.data.sentence_batches import Sentences

NO_LIMIT = 1 << 30
"""Sentence length that no sentence reaches, for validation text: its sentences are never truncated."""
VOCABULARY_FILE, TRAIN_FILE, VALIDATION_FILE = "vocabulary.txt", "train.ids", "validation.ids"
TRAIN_TOPICS_FILE, VALIDATION_TOPICS_FILE = "train.topics.npy", "validation.topics.npy"
"""Files of the topic features of each sentence, if the network of the run reads them."""
CORPORA_FILE = "corpora.json"
"""File with the sentence count and weight of each training text; written unless all weights are 1."""


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Inputs of a training run and the folder of its results."""

    texts: list[Path]
    validation: Path
    folder: Path
    normaliser: Normaliser
    longest: int = 200
    """Maximum number of words per training sentence; longer sentences are truncated."""
    start_from: Path | None = None
    """Folder of another run; training starts from its best model and its vocabulary."""
    weights: tuple[float, ...] = ()
    """For each text, the mean number of times per epoch that a sentence is drawn; empty: once each."""

    def identity(self) -> dict[str, Any]:
        """Return the inputs that must not change when the run is resumed, as plain data."""
        return {
            "texts": [[path.name, find_size(path)] for path in self.texts],
            "text_weights": list(self.weights),
            "validation_text": [self.validation.name, find_size(self.validation)],
            "normaliser": json.loads(self.normaliser.settings.to_json()),
            "longest": self.longest,
            "start_from": str(self.start_from) if self.start_from else None,
        }


@dataclass(frozen=True)
class PreparedText:
    """Training and validation text as word ids."""

    vocabulary: Vocabulary
    train: Sentences
    validation: Sentences

    def counts(self) -> np.ndarray:
        """Count how often each word that can be predicted occurs in the training text: (V - 1,)."""
        return count_ids(self.train.ids, len(self.vocabulary))[:-1]

    def unigram_perplexity(self) -> float:
        """Return the perplexity of the validation text under the word frequencies of the training text.

        This needs no context at all (add-one smoothing), so every network should do much better.
        """
        smoothed = self.counts() + 1
        occurrences = count_ids(self.validation.ids, len(self.vocabulary))[:-1]
        log_probs = np.log(smoothed / smoothed.sum())  # (V - 1,)
        return float(np.exp(-(occurrences @ log_probs) / occurrences.sum()))


def choose_vocabulary(counts: Mapping[str, int], file: Path | None, size: int) -> Vocabulary:
    """Return the words of ``file`` (one per line), or the ``size`` most frequent words without a file."""
    if file is None:
        return order_vocabulary(counts, sorted(counts, key=counts.__getitem__, reverse=True)[:size])
    words = [word for line in read_lines(file) if (word := line.strip())]
    if not words:
        raise FormatError("the file has no words; expected one per line", file=str(file))
    return order_vocabulary(counts, words)


def prepare_text(
    inputs: RunInputs,
    vocabulary: Vocabulary | Path | None = None,
    *,
    size: int = 50_000,
    backward: bool = False,
) -> PreparedText:
    """Encode the texts of a run into its folder, reading and normalising each one once.

    Args:
        vocabulary: vocabulary of another model, or a file of words. None uses the ``size`` most frequent
            words.
        backward: reverse the words of each sentence, for a backward network.

    Raises:
        FormatError: a text cannot be read, has fewer than two distinct words, or has none of the
            vocabulary's words.
    """
    folder, texts = inputs.folder, ", ".join(map(str, inputs.texts))
    read = partial(number_words, normaliser=inputs.normaliser, backward=backward)
    words, n_sentences = read(inputs.texts, output=folder / TRAIN_FILE, progress="reading training text")
    if len(words) < 2:
        raise FormatError(f"the only word is {words[0]!r}; expected at least two distinct words", file=texts)
    if not isinstance(vocabulary, Vocabulary):
        counts = count_ids(read_encoded(folder / TRAIN_FILE), len(words) + 1)[1:].tolist()
        vocabulary = choose_vocabulary(dict(zip(words, counts, strict=True)), vocabulary, size)
    vocabulary.save(folder / VOCABULARY_FILE)
    encode_numbered(folder / TRAIN_FILE, words, vocabulary, texts)
    (folder / CORPORA_FILE).unlink(missing_ok=True)
    if set(inputs.weights) - {1.0}:
        corpora = list(zip(n_sentences, inputs.weights, strict=True))
        (folder / CORPORA_FILE).write_text(json.dumps(corpora))
    words, _ = read([inputs.validation], output=folder / VALIDATION_FILE, progress="reading validation text")
    encode_numbered(folder / VALIDATION_FILE, words, vocabulary, str(inputs.validation))
    return load_prepared(folder, inputs.longest)


def encode_numbered(path: Path, words: Sequence[str], vocabulary: Vocabulary, text: str) -> None:
    """Replace the numbers that ``number_words`` wrote by ids of a vocabulary.

    Args:
        words: the words in the order of their numbers.
        text: name of the text, for errors.

    Raises:
        FormatError: the vocabulary has none of the words.
    """
    if not any(map(vocabulary.is_known, words)):
        raise FormatError(
            f"the vocabulary has none of the text's {len(words):,} distinct words, such as {words[0]!r}; "
            "check that letter case and normaliser match",
            file=text,
        )
    new_ids = np.append(vocabulary.end, vocabulary.encode(words)).astype(np.int32)
    renumber(path, new_ids)


def reorder(folder: Path, vocabulary: Vocabulary, order: np.ndarray) -> None:
    """Give the words of a prepared run new ids.

    Args:
        order: (V - 1,) old id of each new id.
    """
    words = [vocabulary.words[i] for i in order]
    Vocabulary((*words, *vocabulary.words[-1:])).save(folder / VOCABULARY_FILE)
    new_ids = np.empty(len(order), dtype=np.int32)
    new_ids[order] = np.arange(len(order), dtype=np.int32)
    for name in (TRAIN_FILE, VALIDATION_FILE):
        renumber(folder / name, new_ids)


def load_prepared(folder: Path, longest: int) -> PreparedText:
    """Map the text that ``prepare_text`` wrote to ``folder`` into memory.

    Args:
        longest: maximum number of words per training sentence; longer sentences are truncated.

    Raises:
        ConfigError: the folder has no prepared text.
    """
    if not (folder / VALIDATION_FILE).exists():
        raise ConfigError(f"{folder} has no training run; start one without --resume")
    vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    corpora: tuple[tuple[int, float], ...] = ()
    if (folder / CORPORA_FILE).exists():
        corpora = tuple((n, weight) for n, weight in json.loads((folder / CORPORA_FILE).read_text()))
    train = Sentences.from_ids(
        read_encoded(folder / TRAIN_FILE),
        start_id=vocabulary.start,
        end_id=vocabulary.end,
        max_words=longest,
        corpora=corpora,
        topics=_load_topics(folder / TRAIN_TOPICS_FILE),
    )
    validation = Sentences.from_ids(
        read_encoded(folder / VALIDATION_FILE),
        start_id=vocabulary.start,
        end_id=vocabulary.end,
        max_words=NO_LIMIT,
        topics=_load_topics(folder / VALIDATION_TOPICS_FILE),
    )
    return PreparedText(vocabulary, train, validation)


def _load_topics(path: Path) -> np.ndarray | None:
    """Map topic features into memory, (S, K) float32; None if there is no file."""
    return np.load(path, mmap_mode="r", allow_pickle=False) if path.exists() else None
