"""Owns the preparation of a neural run: vocabulary chosen, text encoded once and mapped into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError, FormatError
from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from training.batches import Sentences
from training.classes import ordered_vocabulary
from training.corpus import count_words, encode, read_encoded, read_lines

ANY_LENGTH = 1 << 30


@dataclass(frozen=True)
class PreparedText:
    """Training and validation text as ids."""

    vocabulary: Vocabulary
    train: Sentences
    validation: Sentences

    def counts(self) -> np.ndarray:
        """How often each word that can be predicted occurs in the training text, (V - 1,)."""
        return np.bincount(self.train.ids, minlength=len(self.vocabulary))[:-1]


def choose_vocabulary(
    texts: Sequence[Path], normaliser: Normaliser, file: Path | None, size: int
) -> Vocabulary:
    """The words of ``file`` (one a line), or the ``size`` most frequent of the texts."""
    counts = count_words(texts, normaliser)
    if file is None:
        return ordered_vocabulary(counts, (word for word, _ in counts.most_common(size)))
    words = [word for line in read_lines(file) if (word := line.strip())]
    if not words:
        raise FormatError("no words in it; expected one a line", file=str(file))
    return ordered_vocabulary(counts, words)


def prepare(
    folder: Path,
    texts: Sequence[Path],
    validation: Path,
    normaliser: Normaliser,
    vocabulary: Vocabulary,
    longest: int,
) -> PreparedText:
    """Encodes the texts into ``folder``."""
    vocabulary.save(folder / "vocabulary.txt")
    known = {word: i for word, i in vocabulary.ids.items() if vocabulary.knows(word)}  # marks are no words
    for paths, name in ((texts, "train.ids"), ([validation], "validation.ids")):
        to = folder / name
        encode(paths, normaliser, known, unknown=vocabulary.unknown, end=vocabulary.end, to=to)
    return prepared(folder, longest)


def prepared(folder: Path, longest: int) -> PreparedText:
    """Maps what ``prepare`` left in ``folder``; ``longest`` cuts training sentences only.

    Raises:
        ConfigError: nothing was prepared there.
    """
    if not (folder / "validation.ids").exists():
        raise ConfigError(f"{folder} holds no run; start one without --resume")
    vocabulary = Vocabulary.load(folder / "vocabulary.txt")
    marks = {"start": vocabulary.start, "end": vocabulary.end}
    train = Sentences.of(read_encoded(folder / "train.ids"), **marks, longest=longest)
    validation = Sentences.of(read_encoded(folder / "validation.ids"), **marks, longest=ANY_LENGTH)
    return PreparedText(vocabulary, train, validation)
