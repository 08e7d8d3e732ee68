"""Prepare the texts of a classifier: number the labels, choose the vocabulary, and split off validation text.

A text has one sentence per line, and is the text of one class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError, FormatError
from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from rescorer_training.data.corpus import count_ids, number_words, read_encoded, read_sentences
from rescorer_training.data.labelled_sentences import LabelledSentences, label
from rescorer_training.neural.prepare import choose_vocabulary, encode_numbered

VOCABULARY_FILE, TEXT_FILE, SPLIT_FILE = "vocabulary.txt", "text.ids", "split.json"
MIN_COUNT = 2
"""Rarer words of the training text are unknown, so that the network learns what unknown words mean."""


@dataclass(frozen=True)
class LabelledText:
    """Training and validation sentences with their labels."""

    vocabulary: Vocabulary
    labels: tuple[str, ...]
    train: LabelledSentences
    validation: LabelledSentences
    split: str
    """Where the validation sentences come from."""


def prepare_text(
    folder: Path,
    texts: Mapping[str, Path],
    validation: Mapping[str, Path],
    normaliser: Normaliser,
    *,
    vocabulary_size: int = 50_000,
    validation_share: float = 0.1,
) -> LabelledText:
    """Encode the texts of all classes into ``folder``.

    Args:
        texts: the training text of each class.
        validation: the validation text of each class; if empty, the last sentences of each training text are
            taken out of it.
        vocabulary_size: number of words to know, the most frequent ones of the training sentences.
        validation_share: share of each training text for validation if there are no validation texts.

    Raises:
        ConfigError: the classes of training and validation texts differ, or the share is out of range.
        FormatError: a text cannot be read, has no words, or has a single sentence and must be divided.
    """
    if validation and set(validation) != set(texts):
        different = ", ".join(sorted(set(validation) ^ set(texts)))
        raise ConfigError(f"training and validation texts have different classes: {different}")
    if not 0 < validation_share < 1:
        raise ConfigError(f"validation share is {validation_share}; expected a number between 0 and 1")
    paths = [*texts.values(), *(validation[name] for name in texts if validation)]
    words, n_sentences = number_words(paths, normaliser, folder / TEXT_FILE, "reading text")
    if validation:
        n_train, split = n_sentences[: len(texts)], "texts of their own"
    else:
        n_train = [n - max(1, round(validation_share * n)) for n in n_sentences]
        if 0 in n_train:
            raise FormatError(
                "the text has a single sentence; expected at least two, one of them for validation",
                file=str(paths[n_train.index(0)]),
            )
        split = f"the last {100 * validation_share:g} % of the sentences of each class"
    facts = {"labels": list(texts), "n_sentences": n_sentences, "n_train": n_train, "split": split}
    counts = _count_training_words(folder, n_sentences, n_train, len(words))
    known = {word: n for word, n in zip(words, counts.tolist(), strict=True) if n >= MIN_COUNT}
    vocabulary = choose_vocabulary(known, None, vocabulary_size)
    encode_numbered(folder / TEXT_FILE, words, vocabulary, ", ".join(map(str, texts.values())))
    vocabulary.save(folder / VOCABULARY_FILE)
    (folder / SPLIT_FILE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return load_prepared(folder)


def _count_training_words(
    folder: Path, n_sentences: Sequence[int], n_train: Sequence[int], n_words: int
) -> np.ndarray:
    """Count the words 1 … ``n_words`` in the training sentences: (n_words,)."""
    ids = read_encoded(folder / TEXT_FILE)
    bounds = np.concatenate([[0], np.flatnonzero(ids == 0) + 1])
    counts = np.zeros(n_words + 1, dtype=np.int64)
    for first, n in zip(np.cumsum([0, *n_sentences]), n_train, strict=False):
        counts += count_ids(ids[bounds[first] : bounds[first + n]], n_words + 1)
    return counts[1:]


def load_prepared(folder: Path) -> LabelledText:
    """Map the text that ``prepare_text`` wrote to ``folder`` into memory.

    Raises:
        ConfigError: the folder has no prepared text.
    """
    if not (folder / SPLIT_FILE).exists():
        raise ConfigError(f"{folder} has no training text of a classifier; start a run without --resume")
    facts = json.loads((folder / SPLIT_FILE).read_text(encoding="utf-8"))
    vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    labels, n_sentences, n_train = tuple(facts["labels"]), facts["n_sentences"], facts["n_train"]
    text_labels = np.arange(len(n_sentences)) % len(labels)
    text = label(read_encoded(folder / TEXT_FILE), np.repeat(text_labels, n_sentences), vocabulary)
    starts = np.cumsum([0, *n_sentences])
    train = [np.arange(first, first + n) for first, n in zip(starts, n_train, strict=False)]
    is_train = np.zeros(len(text.starts), dtype=bool)
    is_train[np.concatenate(train)] = True
    return LabelledText(
        vocabulary, labels, text.select(np.flatnonzero(is_train)), text.select(np.flatnonzero(~is_train)),
        facts["split"],
    )  # fmt: skip


def encode_sentences(
    sentences: Sequence[Sequence[str]], labels: Sequence[int], vocabulary: Vocabulary
) -> LabelledSentences:
    """Encode canonical words with the vocabulary of a classifier; sentences may be empty."""
    rows = [np.append(vocabulary.encode(words), vocabulary.end) for words in sentences]
    ids = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    return label(ids, np.asarray(labels, dtype=np.int64), vocabulary)


def read_labelled(
    texts: Mapping[str, Path], labels: Sequence[str], normaliser: Normaliser, vocabulary: Vocabulary
) -> LabelledSentences:
    """Read test texts, one per class; lines without words are skipped.

    Raises:
        ConfigError: a class is unknown to the classifier.
        FormatError: a text cannot be read or has no words.
    """
    unknown = [name for name in texts if name not in labels]
    if unknown:
        raise ConfigError(f"the classifier has no class {unknown[0]!r}; it has {', '.join(labels)}")
    sentences: list[tuple[str, ...]] = []
    numbers: list[int] = []
    for name, path in texts.items():
        found = list(read_sentences([path], normaliser, "reading text"))
        if not found:
            raise FormatError(f"no words in the text of class {name!r}", file=str(path))
        sentences += found
        numbers += [labels.index(name)] * len(found)
    return encode_sentences(sentences, numbers, vocabulary)
